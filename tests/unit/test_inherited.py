"""What a command inherits from the shell decides nothing (N25)."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings

import pytest

from mpadam.cli import main
from mpadam.inherited import INSTRUCTIONS, make_own

DROPPED = (
    *("MKL_CBWR", "NVIDIA_TF32_OVERRIDE", "OMP_DYNAMIC", "TORCHINDUCTOR_USE_FAST_MATH"),
    *("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS", "MATPLOTLIBRC", "USE_TORCH"),
    "FLASH_ATTENTION_DETERMINISTIC",
)
KEPT = (
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_HOME"),
    *INSTRUCTIONS,
    *("CUDA_VISIBLE_DEVICES", "HF_TOKEN", "PYTHONPATH", "TORCH_LOGS", "CUDNN_PATH", "HTTPS_PROXY"),
)


def test_n25_what_changes_numbers_goes_and_what_says_where_things_are_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*DROPPED, *KEPT, "MPLBACKEND"):
        monkeypatch.setenv(name, "x")
    make_own()
    assert not [name for name in DROPPED if name in os.environ]
    assert not [name for name in KEPT if os.environ.get(name) != "x"]
    assert os.environ["MPLBACKEND"] == "agg"


def test_n25_inherited_warning_filters_do_not_end_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_own()
        warnings.warn("a library's", DeprecationWarning)
    assert "PYTHONWARNINGS" not in os.environ


def test_n25_a_letter_that_the_terminal_lacks_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    make_own()
    print("η 1×")
    sys.stdout.flush()
    assert written.getvalue() == b"\\u03b7 1\\xd7\n"


def test_n25_every_command_begins_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    with pytest.raises(SystemExit):
        main(["--version"])
    assert os.environ["MPLBACKEND"] == "agg"


def test_n25_inherited_flags_of_python_do_not_count() -> None:
    """PYTHONOPTIMIZE takes docstrings and assertions away; its own process, since it is started again."""
    code = "from mpadam.inherited import make_own; make_own(); print(make_own.__doc__ is not None, __debug__)"
    environment = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONINSPECT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, input="1/0\n"
    )
    assert done.stdout == "True True\n"
    assert not done.stderr
