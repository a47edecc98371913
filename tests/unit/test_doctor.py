"""`mpadam doctor`, the regimes of made-up machines, and what training requires of them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from mpadam.cli import main
from mpadam.model import capabilities
from mpadam.model.capabilities import Gpu, Machine, probe, regime_support, require

PAPER = ("fp32-bf16", "fp32-fp8", "bf16-bf16", "bf16-fp8", "fp8-bf16", "fp8-fp8", "nvfp4-bf16", "nvfp4-fp8")
OURS = ("fp8e4m3-bf16", "fp8e4m3-fp8", "nvfp4s-bf16", "nvfp4s-fp8")

BARE = Machine(
    python="3.11",
    platform="Linux x86_64",
    torch="2.13.0",
    cuda=None,
    cpu="a CPU",
    cpu_threads=1,
    cpu_bf16=True,
    gpus=(),
    packages=dict.fromkeys(capabilities.PACKAGES),
    tools=dict.fromkeys(capabilities.TOOLS),
)


def with_gpu(*capabilities: tuple[int, int], **packages: str) -> Machine:
    gpus = tuple(Gpu("a GPU", capability, 80.0) for capability in capabilities)
    return replace(BARE, cuda="12.9", gpus=gpus, packages={**BARE.packages, **packages})


def products(machine: Machine, device: str) -> dict[str, str]:
    return {s.regime: s.products for s in regime_support(machine) if s.device == device}


class TestRegimes:
    def test_every_regime_of_the_study_is_listed(self) -> None:
        assert set(products(BARE, "cpu")) == {*PAPER, *OURS}

    def test_without_gpu(self) -> None:
        on_cpu = products(BARE, "cpu")
        assert {r for r in on_cpu if on_cpu[r] == "native"} == {r for r in on_cpu if r.endswith("-bf16")}
        assert set(on_cpu.values()) == {"native", "emulated"}
        assert set(products(BARE, "cuda").values()) == {"not at all"}
        assert set(products(replace(BARE, cpu_bf16=False), "cpu").values()) == {"through float32", "emulated"}

    @pytest.mark.parametrize(
        ("machine", "bf16", "fp8", "backend"),
        [
            (with_gpu((7, 0)), "emulated", "emulated", "emulated"),
            (with_gpu((8, 0), transformer_engine="2.0"), "native", "emulated", "emulated"),
            (with_gpu((9, 0)), "native", "native", "native"),
            (with_gpu((9, 0), transformer_engine="2.0"), "native", "native", "transformer_engine"),
            (with_gpu((9, 0), (8, 0)), "native", "emulated", "emulated"),  # the weakest decides
        ],
    )
    def test_with_gpu(self, machine: Machine, bf16: str, fp8: str, backend: str) -> None:
        for support in regime_support(machine):
            if support.device == "cuda":
                assert support.products == (fp8 if support.regime.endswith("-fp8") else bf16)
                assert support.backend == (backend if support.regime.endswith("-fp8") else None)

    def test_storage(self) -> None:
        stored = {s.regime: (s.masters, s.bytes_per_parameter) for s in regime_support(with_gpu((10, 0)))}
        assert stored["fp32-fp8"] == ("native", 4.0)
        assert stored["bf16-bf16"] == ("native", 2.0)
        assert stored["fp8-fp8"] == stored["fp8e4m3-fp8"] == ("storage only", round(1 + 1 / 256, 4))
        assert stored["nvfp4-fp8"][0] == stored["nvfp4s-bf16"][0] == "storage only"  # on Blackwell too
        assert stored["nvfp4-fp8"][1] == pytest.approx(0.5 + 1 / 16, abs=1e-3)


class TestDocumentation:
    def test_the_table_of_the_docs_is_what_the_code_says(self) -> None:
        text = (Path(__file__).parents[2] / "docs" / "fp8.md").read_text()
        lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `") and "-" in line]
        table = {cells[0].strip("`"): cells[1:] for cells in lines if len(cells) == 6}
        columns = [(BARE, "cpu"), (with_gpu((8, 0)), "cuda"), (with_gpu((8, 9)), "cuda")]
        expected = {s.regime: [f"{s.bytes_per_parameter:.4f}", s.masters] for s in regime_support(BARE)}
        for machine, device in columns:
            for regime, status in products(machine, device).items():
                expected[regime].append(status)
        assert table == expected


class TestRequire:
    def test_nothing_special_is_needed(self) -> None:
        require(machine=BARE)
        require(attention="eager", backend="emulated", machine=BARE)
        require(backend="native", device="cuda", machine=with_gpu((9, 0)))

    @pytest.mark.parametrize(
        ("asked", "machine", "message"),
        [
            ({"attention": "flash"}, BARE, "attention = 'flash': give one of sdpa, flash_attention_2, eager"),
            ({"attention": "flash_attention_2"}, BARE, "needs a CUDA device; write  attention: sdpa"),
            ({"attention": "flash_attention_2", "device": "cuda"}, with_gpu((7, 5)), "8.0 or higher, this one has 7.5"),
            ({"attention": "flash_attention_2", "device": "cuda"}, with_gpu((9, 0)), "pip install flash-attn"),
            ({"liger": True, "device": "cuda"}, with_gpu((9, 0)), "pip install liger-kernel  or write  liger: false"),
            ({"liger": True}, with_gpu((9, 0)), "liger = true needs a CUDA device"),
            ({"backend": "native", "device": "cuda"}, with_gpu((8, 0)), "fp8_backend: emulated"),
            ({"backend": "native"}, BARE, "needs a CUDA device"),
            ({"backend": "transformer_engine", "device": "cuda"}, with_gpu((9, 0)), "write fp8_backend: native"),
            ({"device": "cuda"}, BARE, "there is no CUDA device; write  device: cpu"),
        ],
    )
    def test_asked_for_but_not_there(self, asked: dict, machine: Machine, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            require(**asked, machine=machine)

    def test_all_problems_in_one_error(self) -> None:
        with pytest.raises(ValueError, match=r"flash_attention_2.*liger.*fp8_backend"):
            require(
                attention="flash_attention_2",
                liger=True,
                backend="transformer_engine",
                device="cuda",
                machine=with_gpu((9, 0)),
            )

    def test_installed_and_importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("flash_attn", "liger_kernel", "transformer_engine", "transformer_engine.pytorch"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        everything = {"attention": "flash_attention_2", "liger": True, "backend": "transformer_engine"}
        require(**everything, device="cuda", machine=with_gpu((9, 0)))

    def test_this_machine_is_the_default(self) -> None:
        asked = {"liger": True, "device": "cpu"}
        with pytest.raises(ValueError, match="needs a CUDA device"):
            require(**asked)


class TestCommand:
    def test_text(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        machine = with_gpu((9, 0), transformer_engine="2.1")
        monkeypatch.setattr(capabilities, "probe", lambda: machine)
        assert main(["doctor"]) == 0
        lines = capsys.readouterr().out.splitlines()
        table = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
        assert "sm_100" in lines[-1]
        assert table["gpu"] == ["a", "GPU,", "compute", "capability", "9.0,", "80.0", "GiB"]
        assert table["transformer-engine"] == ["2.1"]
        assert table["apptainer"] == ["not", "found"]
        assert table["fp8-fp8"] == ["1.0039", "storage", "only", "emulated", "native", "(transformer_engine)"]
        assert table["nvfp4-bf16"] == ["0.5626", "storage", "only", "native", "native"]

    def test_json_of_this_machine(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["torch"] == probe().torch
        assert {r["regime"] for r in report["regimes"]} == {*PAPER, *OURS}
        assert report["packages"].keys() == capabilities.PACKAGES.keys()

    def test_help_does_not_import_torch(self) -> None:
        code = "import sys, mpadam.commands.doctor; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
