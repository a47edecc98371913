"""Whether torch.compile works is tried, and where it does not, steps are eager with one warning that says why (N11)."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import _inductor
from torch._dynamo.utils import counters
from torch._inductor import config

from mpadam import AdamW, compiler
from mpadam.cli import main
from mpadam.compiler import compile_problem, remembered_problem
from mpadam.optim import compiled
from mpadam.study import auto

REQUEST = {"regime": {"compute": "bf16"}, "training": {"compile": "auto", "device": "cpu"}}


def forget() -> None:
    for function in (compiled.can_compile, auto._compiles):
        function.cache_clear()


@pytest.fixture(autouse=True)
def tried_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is remembered before a test, or after it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    forget()
    yield
    forget()


@pytest.fixture
def no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler that is there and says its version, on a machine without Python's headers."""
    path = tmp_path / "c++"
    path.write_text(
        '#!/bin/sh\ncase "$*" in --version|-v) echo "g++ 14.2"; exit ;; esac\n'
        'echo "a.cpp:3:10: fatal error: Python.h: No such file or directory" >&2\nexit 1\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with config.patch({"cpp.cxx": (str(path),)}):
        yield


def stepped(*, compile: bool) -> torch.Tensor:
    p = torch.nn.Parameter(torch.linspace(-1, 1, 8).bfloat16())
    optimizer = AdamW([p], lr=1e-2, compile=compile)
    p.grad = torch.ones_like(p)
    optimizer.step()
    return p.detach()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_machine_that_compiles_says_so_and_changes_nothing_in_the_process() -> None:
    state, graphs = torch.get_rng_state(), dict(counters["stats"])
    assert compile_problem("cpu") == ""
    assert torch.equal(torch.get_rng_state(), state)
    assert dict(counters["stats"]) == graphs


def test_n11_without_headers_steps_are_eager_with_one_warning(no_headers: None) -> None:
    with pytest.warns(UserWarning, match=r"Python\.h: No such file.*python3-dev.*eagerly") as caught:
        first = stepped(compile=True)
    assert len([warning for warning in caught if "compile" in str(warning.message)]) == 1
    assert "\n" not in str(caught[-1].message)
    with warnings.catch_warnings(action="error"):
        assert torch.equal(stepped(compile=True), first)
    assert torch.equal(stepped(compile=False), first)


def test_n11_without_headers_auto_is_false_and_says_why_once(
    no_headers: None, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        assert [auto.auto_here(REQUEST).compile for _ in range(2)] == [False, False]
    (line,) = [record.getMessage() for record in caplog.records if record.name == auto.__name__]
    assert line.startswith("training.compile: auto is false: ")
    assert "Python.h" in line
    assert main(["doctor"]) == 0
    assert "Python.h" in next(line for line in capsys.readouterr().out.splitlines() if "torch.compile" in line)


def test_n11_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "TORCHINDUCTOR_CACHE_DIR" in compile_problem("cpu")


@pytest.mark.parametrize(
    "error", [OSError("x.so: failed to map segment.  Please remount"), MemoryError(), SystemError()]
)
def test_n11_a_kernel_that_cannot_be_loaded(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(_inductor, "compile", fail)
    said = str(error).partition(".  ")[0] or type(error).__name__
    assert f"does not compile and run here ({said})" in compile_problem("cpu")


def test_n11_a_kernel_that_runs_and_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_inductor, "compile", lambda *_, **__: lambda x: (x,))
    assert "wrong numbers" in compile_problem("cpu")


def test_n11_nothing_is_tried_where_the_configuration_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_problem", lambda device: pytest.fail("tried"))
    for decided in (True, False):
        auto.auto_here({**REQUEST, "training": {"compile": decided, "device": "cpu"}})


def test_n11_it_is_tried_once_on_a_machine_and_again_when_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(compiler, "compile_problem", lambda device: tried.append(device) or "")
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    for _ in range(3):
        assert remembered_problem("cpu") == ""
    assert tried == ["cpu"]
    os.utime(tmp_path / "g++", (1, 1))  # another compiler
    remembered_problem("cpu")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    remembered_problem("cpu")
    assert tried == ["cpu"] * 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a login node: the CPU is what can be tried
    remembered_problem("cuda")
    assert tried == ["cpu"] * 4


def test_n11_a_record_of_another_user_or_a_broken_one_does_not_count_nor_is_a_failure_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that was killed once, or a disk that was full, does not decide what later studies do."""
    found = ["out of memory", "", "tried"]
    monkeypatch.setattr(compiler, "compile_problem", lambda device: found.pop(0))
    assert [remembered_problem("cpu") for _ in range(3)] == ["out of memory", "", ""]
    monkeypatch.setattr(compiler, "compile_problem", lambda device: "tried")
    (record,) = tmp_path.rglob("compiles-*.json")
    record.write_text("[")
    assert remembered_problem("cpu") == "tried"
    record.write_text('{"compiles": ""}')
    assert remembered_problem("cpu") == ""
    user = os.getuid()
    shutil.copytree(record.parent, tmp_path / f"mpadam-{user + 1}")
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert remembered_problem("cpu") == "tried"


def test_n11_where_nothing_can_be_kept_it_is_tried_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_problem", lambda device: "tried")
    (tmp_path / f"mpadam-{os.getuid()}").touch()  # no folder
    assert remembered_problem("cpu") == "tried"
