"""benchmarks/gpu_check.py on a CPU and tiny sizes: it works, it notices faults, and no case ends another."""

import json
import math
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import gpu_check
import pytest
import torch
from gpu import libraries, optimizers, products, rates, runs, waits
from gpu.parts import Case, FailedError, KilledError, NotHereError, Row, Setting, apart, page, tried

from mpadam.llama import PAPER_SIZES
from mpadam.model.fp8.products import PRODUCTS, Product
from mpadam.numerics.formats import BY_MASTERS
from mpadam.plan.assumptions import HEAD_ROOM
from mpadam.study.load import load_study
from tests.unit.transformer_engine_stand_in import Record, stand_ins


@pytest.fixture
def small(tmp_path: Path) -> Setting:
    return Setting(**gpu_check.SMALL, config=load_study([gpu_check.CONFIGURATION]), folder=tmp_path)


def absent(rows: list[dict]) -> dict[str, str]:
    return {row["case"]: row["absent"] for row in rows if row["absent"]}


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `--small` writes; the command ends well."""
    out = tmp_path_factory.mktemp("gpu_check")
    assert gpu_check.main(["--small", "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_a_small_run_tries_all_that_needs_no_gpu(small_run: Path) -> None:
    parts = json.loads((small_run / "gpu_check.json").read_text())["parts"]
    assert list(parts) == list(gpu_check.PARTS)
    assert not [row for rows in parts.values() for row in rows if row["fault"]]
    tried = {name: [row["case"] for row in rows if not row["absent"]] for name, rows in parts.items()}
    assert tried["casts"] == ["casts to e4m3", "casts to e5m2", "saved state, native"]
    assert len(tried["products"]) == 6
    assert tried["bits"] == ["bf16", "native FP8"]
    assert tried["regimes"] == [f"{masters}-{compute}" for masters in BY_MASTERS for compute in ("bf16", "fp8")]
    assert tried["plan"] == tried["waits"] == []
    assert set(absent(parts["bits"])) == {"Transformer Engine", "FlashAttention", "Liger"}
    resumed = parts["bits"][0]["values"]
    assert resumed["resumed from"] == 5
    assert resumed["last loss"] < resumed["first loss"]


def test_the_page_of_a_small_run_says_what_is_not_here_and_why(small_run: Path) -> None:
    text = (small_run / "gpu_check.md").read_text()
    assert "No faults." in text
    assert "- not here: bf16; native FP8; Transformer Engine; FlashAttention; Liger (" in text
    assert "- not here: FlashAttention (attention = 'flash_attention_2' needs a CUDA device" in text
    assert f"| torch | {torch.__version__} | good |" in text


def test_nothing_tried_is_no_success(tmp_path: Path) -> None:
    assert gpu_check.main(["--small", "--parts", "libraries", "waits", "--out", str(tmp_path)]) == 1


def test_all_shapes_of_the_paper_are_in_the_full_run(small: Setting) -> None:
    assert gpu_check.FULL["sizes"] == PAPER_SIZES
    assert gpu_check.FULL["masters"] == tuple(BY_MASTERS)
    found = [(size, shape) for size, _, shape in products.shapes(replace(small, sizes=PAPER_SIZES))]
    assert len(found) == 12
    assert found[-3:] == [("1b", (2048, 2048)), ("1b", (2048, 5461)), ("1b", (5461, 2048))]


# --- processes -------------------------------------------------------------------------------------------------------


def _absent() -> None:
    raise NotHereError("no such thing")


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _imported() -> tuple[str | None, bool]:
    return os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"), "gpu.preloaded" in sys.modules


def test_processes_start_with_all_imported_and_cuda_untouched() -> None:
    assert "gpu.preloaded" not in sys.modules
    assert apart(_imported) == ("1", True)


def test_a_failing_case_ends_no_other() -> None:
    """By an error, a crash, a hang and an error outside its process."""
    cases = {
        "error": partial(apart, math.sqrt, -1.0),
        "crash": partial(apart, os._exit, 11),
        "hang": partial(apart, signal.pause, limit=0.01),
        "outside": partial(int, "x"),
    }
    faults = {name: tried(Case(name, work))[0].fault for name, work in cases.items()}
    assert faults["error"].startswith("ValueError: ")
    assert faults["crash"] == "the process ended with code 11"
    assert faults["hang"] == "was ended after 0 s"
    assert faults["outside"].startswith("ValueError: invalid literal")
    with pytest.raises(KilledError, match="code -9"):
        apart(_killed)
    with pytest.raises(FailedError, match="math domain"):
        apart(math.sqrt, -1.0)
    assert tried(Case("absent", partial(apart, _absent))) == [Row("absent", absent="no such thing")]


# --- faults are noticed ----------------------------------------------------------------------------------------------


def test_a_wrong_product_is_noticed(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    native = PRODUCTS["native"]
    wrong = Product(native.cast, lambda a, b, *rest: native.multiply(a, b, *rest) * 1.2)
    monkeypatch.setitem(PRODUCTS, "native", wrong)
    [row] = products.compare("tiny gate, up", "native", (32, 48), small)
    assert row.fault.startswith("output at 14.0 dB")  # a fifth is -14 dB


def test_transformer_engine_computes_in_its_regions_and_loads_its_state(
    small: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against stand-ins, which refuse a call outside an autocast region and pickled state."""
    for name, module in stand_ins(Record()).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(products, "_need_backend", lambda *_: None)
    rows = products.compare("awkward down", "transformer_engine", (53, 32), small)
    assert [row.values["against"] for row in rows] == ["emulated", "native"]
    assert all(20 < row.values["output, dB"] < 60 and not row.fault for row in rows)
    monkeypatch.setattr(products, "apart", lambda work, *args: work(*args))
    assert products.check_state("transformer_engine", small)[0].fault == ""
    monkeypatch.setattr(products, "load_fp8_state_dict", lambda *_: None)
    assert products.check_state("transformer_engine", small)[0].fault != ""


def test_other_bits_are_noticed(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training with another loss, a third with other weights that began again."""
    records = [{"step": step, "loss": 6.0 - step} for step in (1, 2, 3)]
    good = {"records": records, "digest": "a", "attempts": 1, "tokens_per_s": None}
    answers = iter([good, {**good, "records": [*records[:2], {"step": 3, "loss": 3.5}]}, None, {**good, "digest": "b"}])

    def answer(*_: object) -> dict:
        if (found := next(answers)) is None:
            raise KilledError("killed")
        return found

    monkeypatch.setattr(runs, "apart", answer)
    [row] = runs.bits(small, "bf16", {})
    assert row.fault == (
        "trained twice: other numbers from step 3 on; killed and resumed: other weights or scales; "
        "started from the beginning after the kill"
    )


@pytest.mark.parametrize(("last", "fault"), [(2.9, ""), (2.0, "away from those without"), (math.nan, "loss 6.000 to")])
def test_liger_is_compared_with_eager(small: Setting, monkeypatch: pytest.MonkeyPatch, last: float, fault: str) -> None:
    answers = iter([[6.0, last], [6.0, 2.91]])
    monkeypatch.setattr(
        runs, "apart", lambda *_: {"records": [{"loss": x} for x in next(answers)], "tokens_per_s": None}
    )
    [row] = runs.liger(small)
    assert fault in row.fault
    assert bool(fault) == bool(row.fault)


def test_units_in_the_last_place() -> None:
    one, next_one = torch.tensor([1.0, -1.0, 0.0]), torch.tensor([1.0, -1.0, 0.0])
    next_one[0] = torch.nextafter(one[0], torch.tensor(2.0))
    next_one[2] = -0.0
    assert optimizers.distance(one, next_one).tolist() == [1, 0, 0]
    assert optimizers.distance(one.bfloat16(), (one * 1.0078125).bfloat16()).tolist() == [1, 1, 0]
    codes, others = torch.tensor([0x17, 0x90], dtype=torch.uint8), torch.tensor([0x27, 0x13], dtype=torch.uint8)
    low, high = optimizers.distance(codes, others, nibbles=True).tolist()
    assert low == [0, 3]
    assert high == [1, 2]  # from -1 to +1


@pytest.mark.parametrize("masters", ["bf16", "fp8", "nvfp4s", "fp32"])
def test_differing_steps_are_counted(small: Setting, masters: str) -> None:
    weights = optimizers.PaperSet(small.sizes["tiny"], 16, "cpu")
    one, other = (weights.optimizer("m-plus-adam", masters, compile=False) for _ in range(2))
    before = [one.store_of(p).read() for p in optimizers._parameters(one)]
    one.step()
    other.step()
    values, share = optimizers._differences(one, other, before)
    assert share == 0 == values["states that differ"]
    other.step()
    values, share = optimizers._differences(one, other, before)
    assert share > 1
    assert values["weights that differ"] > 0 < values["states that differ"]


def test_i18_divisions_that_are_approximate_are_no_fault_where_a_weight_is_smaller_than_its_step(
    small: Setting,
) -> None:
    """A GPU's are, in compiled steps; in ulps of the weight alone, 3 of 1000 float32 weights were 2 or more away."""
    weights = optimizers.PaperSet(small.sizes["tiny"], 256, "cpu")
    one, other = (weights.optimizer("m-plus-adam", "fp32", compile=False) for _ in range(2))
    before = [one.store_of(p).read() for p in optimizers._parameters(one)]
    one.step()
    other.step()
    stored = [other.store_of(p).tensors["weight.codes"] for p in optimizers._parameters(other)]
    steps = [t - w for t, w in zip(stored, before, strict=True)]
    exact = [t.clone() for t in stored]
    for relative, fault in ((2.0**-22, False), (2.0**-14, True)):
        for t, whole, step in zip(stored, exact, steps, strict=True):
            t.copy_(whole + step * relative)
        assert max(int(optimizers.distance(t, e).max()) for t, e in zip(stored, exact, strict=True)) > 1
        _, share = optimizers._differences(other, one, before)
        assert (share > 1) == fault


@pytest.mark.parametrize(
    ("slower", "peak", "fault"),
    [(1.0, 3e9, ""), (1.01 * HEAD_ROOM, 3e9, "slower than the limit"), (1.0, 3e11, "more memory than planned")],
)
def test_a_training_is_held_against_the_plan(
    small: Setting, monkeypatch: pytest.MonkeyPatch, slower: float, peak: float, fault: str
) -> None:
    setting = replace(small, device="cuda", sizes=PAPER_SIZES, vocabulary=32_000)
    positions = 512 * 256
    amounts = {"global_batch_size": 512, "micro_batch_size": 256}
    shape = rates.Shape(small.config.models["60m"], 32_000, 256)
    seconds, _ = rates._planned(small.config, shape, "h100", "bf16-bf16", amounts)
    found = {"gpu": "NVIDIA H100 80GB HBM3", "target_tokens": rates.STEPS * positions, "peak_bytes": peak,
             "tokens_per_s": positions / seconds / slower}  # fmt: skip
    monkeypatch.setattr(rates, "write_run", lambda *_, **__: small.folder / "run")
    monkeypatch.setattr(rates, "forget", lambda *_: None)
    monkeypatch.setattr(rates, "apart", lambda *_: found)
    [row] = rates.compare("60m", "bf16", setting)
    assert row.values["of plan"] == pytest.approx(1 / slower)
    assert fault in row.fault
    assert bool(fault) == bool(row.fault)
    found["gpu"] = "Some Other"
    with pytest.raises(NotHereError, match="h100, h200, a100, and this is a Some Other"):
        rates.compare("60m", "bf16", setting)


def test_synchronisations_are_counted_by_line(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real step on the CPU, in which each gradient norm warns as torch does on a GPU."""
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    norm = waits.backward.__globals__["global_norm"]

    def warning(tensors: list) -> torch.Tensor:
        waits.warnings.warn("called a synchronizing CUDA operation")
        waits.warnings.warn("something else")
        return norm(tensors)

    monkeypatch.setitem(waits.backward.__globals__, "global_norm", warning)
    folder = runs.write_run(small, "waits", steps=100, log_every=100)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        places = waits.count_here(folder)
    finally:
        torch.use_deterministic_algorithms(before)
    [(place, number)] = places.items()
    assert place.startswith("test_fp8_gpu_check.py:")
    assert number == waits.COUNTED
    assert modes == ["warn", "default"] * (waits.WARM_UP + waits.COUNTED)


def test_a_library_that_is_loaded_twice_is_seen() -> None:
    lines = [
        "7f0-7f1 r-xp 00000000 08:01 1 /env/lib/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
        "7f1-7f2 r--p 00000000 08:01 1 /env/lib/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
        "7f2-7f3 r-xp 00000000 08:01 2 /usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0",
        "7f4-7f5 r-xp 00000000 08:01 3 /env/lib/site-packages/nvidia/cublas/lib/libcublasLt.so.13",
        "7f5-7f6 rw-p 00000000 00:00 0",
    ]
    found = libraries.mapped("\n".join(lines))
    assert found == {
        "libcudnn": {"nvidia/cudnn/lib/libcudnn.so.9", "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0"},
        "libcublasLt": {"nvidia/cublas/lib/libcublasLt.so.13"},
    }


def test_the_page_lists_faults_first_and_json_has_no_infinity() -> None:
    rows = [Row("a", {"dB": math.inf, "ms": 1.23456}), Row("b", {"ms": 2}, fault="too slow"), Row("c", absent="no GPU")]
    assert rows[0].as_json() == {"case": "a", "values": {"dB": "inf", "ms": 1.23456}, "fault": "", "absent": ""}
    text = page({"device": "cpu"}, {"products": rows})
    assert "Faults:\n\n- products: b: too slow\n" in text
    assert "| a | inf | 1.235 | good |\n| b |  | 2 | too slow |\n" in text
    assert text.endswith("- not here: c (no GPU)\n")
