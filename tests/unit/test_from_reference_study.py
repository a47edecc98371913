"""What a launch command of the reference implementation becomes: a study's values, and the files written."""

import json
from pathlib import Path

import pytest
import yaml
from reference_readme import BF16, COMMANDS, FP8_FP8, content_of, with_steps, with_value, without

from mpadam.cli import main
from mpadam.reference.command import read_command
from mpadam.reference.study import run_of, translate
from mpadam.study.load import load_study, merge, parse_study, read_yaml
from mpadam.study.spec import read_run_file

ROOT = Path(__file__).parents[2]
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
CUT = {"sequences": "pack", "sequence_length": 128, "validation_tokens": 32_768}
MANIFEST = {
    "fingerprint": "f" * 16,
    "tokenizer_fingerprint": "t" * 16,
    "vocab_size": 1024,
    "train_sequences": 6_000_000,
    "request": {"sequences": CUT},
}


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [7, 9_999, 10_000, 123_456])
@pytest.mark.parametrize("warmup", [0, 1, 3, 7])
def test_a_warm_up_in_steps_comes_back_exactly(steps: int, warmup: int) -> None:
    text = with_value(with_value(with_steps(BF16, steps), "warmup_steps", warmup), "m_adam_warmup_steps_e", 0)
    assert round(content_of(text)["training"]["schedule"]["warmup"] * steps) == warmup


@pytest.mark.parametrize(
    ("model", "steps", "budget", "steps_1x"),
    [("60m", 10_000, 1, 10_000), ("60m", 80_000, 8, 10_000), ("350m", 60_000, 1, 60_000), ("130m", 777, 1, 777)],
)
def test_steps_are_a_budget_where_they_are_a_multiple(model: str, steps: int, budget: int, steps_1x: int) -> None:
    text = with_value(with_value(with_steps(BF16, steps), "warmup_steps", 0), "m_adam_warmup_steps_e", 0)
    content = content_of(with_value(text, "model_config", f"llama_configs/llama_{model}.json"))
    assert content["budgets"] == [budget]
    assert content["models"][model]["steps_1x"] == steps_1x


def test_another_format_scale_and_block_are_another_regime() -> None:
    text = without(with_value(with_value(FP8_FP8, "fp8_format", "e4m3"), "fp8_block_size", 128), "fp8_pow2_scale")
    assert content_of(text)["regimes"] == {
        "fp8e4m3-fp8": {"masters": "fp8e4m3", "compute": "fp8", "block_size": 128, "power_of_two_scale": False}
    }


def test_fp8_products_of_bf16_weights_are_a_regime_of_their_own() -> None:
    words = without(FP8_FP8, "fp8_true_master", "fp8_format", "fp8_block_size", "fp8_pow2_scale")
    assert content_of(words)["regimes"] == {"bf16-fp8": {"masters": "bf16", "compute": "fp8"}}


def test_the_batch_is_that_of_all_gpus_where_none_is_given() -> None:
    content = content_of(without(BF16, "total_batch_size").replace("nproc_per_node=2", "nproc_per_node=4"))
    assert content["training"]["global_batch_size"] == 1024


def test_a_configuration_file_that_exists_is_read(tmp_path: Path) -> None:
    path = tmp_path / "llama_9m.json"
    path.write_text(json.dumps({**TINY, "model_type": "llama", "rms_norm_eps": 1e-6}))
    shape = {"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2, "steps_1x": 10_000}
    assert content_of(with_value(BF16, "model_config", path))["models"] == {"9m": shape}
    path.write_text(json.dumps({**TINY, "hidden_act": "gelu"}))
    with pytest.raises(ValueError, match="hidden_act is 'gelu'; here it is 'silu'"):
        content_of(with_value(BF16, "model_config", path))
    path.write_text("{")
    with pytest.raises(ValueError, match="no configuration of a LLaMA"):
        content_of(with_value(BF16, "model_config", path))


def test_what_is_left_out_or_taken_for_granted_is_said() -> None:
    notes = translate(read_command(without(BF16, "m_adam_beta2"))).notes
    assert "--m_adam_beta2: not given: 0.98" in notes
    assert any(note.startswith("--workers: not used: ") for note in notes)
    assert not any("m_adam_total_steps_e" in note or "--lr:" in note for note in notes)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_study_is_valid_alone_and_over_the_projects_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "reference.yaml"
    assert main(["from-reference", BF16, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert f"--configfile {out}" in shown.out
    assert "note: --workers: not used" in shown.err
    alone, over = load_study([out]), load_study([ROOT / "config.yaml", out])
    assert alone.study == over.study == "m-adam-bf16-60m-1x"
    assert run_of(alone) == run_of(over)
    merged = merge(read_yaml(ROOT / "config.yaml"), read_yaml(out))
    assert over == parse_study(merged)
    assert over.training.schedule_mult == alone.training.schedule_mult


def test_without_a_file_the_study_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["from-reference", BF16]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["budgets"] == [1]


def prepared(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text(json.dumps(MANIFEST))
    return data


def for_prepared(text: str) -> str:
    return with_value(with_value(text, "max_length", 128), "num_eval_tokens", 32_768)


TEN_TIMES = for_prepared(with_steps(BF16, 100_000))


def test_with_prepared_data_the_command_becomes_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "runs/reference"
    arguments = ["--data", str(prepared(tmp_path)), "--run-dir", str(run_dir)]
    assert main(["from-reference", for_prepared(BF16), *arguments]) == 0
    run = read_run_file(run_dir / "run.yaml")
    assert (run.spec.data.fingerprint, run.spec.data.sequences) == ("f" * 16, "pack")
    assert (run_dir / run.data).resolve() == tmp_path / "data"
    assert (run.spec.optimizer.name, run.spec.optimizer.values["lr"]) == ("m-plus-adam", 8e-5)
    assert run.spec.optimizer.values["lr_mult"] == 0.004
    additive, multiplicative = run.spec.training.schedule, run.spec.training.schedule_mult
    assert (additive.kind, additive.warmup_steps, additive.total_steps) == ("linear", 2000, 10_000)
    assert (multiplicative.kind, multiplicative.warmup_steps, multiplicative.alpha) == ("logcosine", 2000, 3.0)
    assert (run.spec.training.steps, run.spec.seed) == (10_000, 0)
    launch = capsys.readouterr().out.splitlines()[-1]
    assert launch == f"torchrun --standalone --nproc_per_node=2 -m mpadam train --run-dir {run_dir}"


def test_on_a_cpu_one_process_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    arguments = ["--data", str(prepared(tmp_path)), "--run-dir", str(run_dir), "--device", "cpu"]
    assert main(["from-reference", for_prepared(BF16), *arguments]) == 0
    assert read_run_file(run_dir / "run.yaml").spec.training.device == "cpu"
    assert capsys.readouterr().out.splitlines()[-1] == f"mpadam train --run-dir {run_dir}"


@pytest.mark.parametrize(
    ("text", "arguments", "parts"),
    [
        (BF16, ["--data", "{data}", "--run-dir", "{run}"], ["--max_length 256", "write  --max_length 128"]),
        (with_value(BF16, "max_length", 128), ["--data", "{data}", "--run-dir", "{run}"], ["--num_eval_tokens 32768"]),
        (TEN_TIMES, ["--data", "{data}", "--run-dir", "{run}"], ["51,200,000", "epochs: 9"]),
        (BF16, ["--data", "{run}", "--run-dir", "{run}"], ["no manifest.json", "mpadam data"]),
        (BF16, ["--data", "{data}"], ["--data and --run-dir go together"]),
        (BF16, ["--run-dir", "{run}"], ["--data and --run-dir go together"]),
        (BF16, ["--data", "{data}", "--run-dir", "{run}", "--out", "x"], ["give one of them"]),
        (with_value(BF16, "scheduler", "polynomial"), [], ["training.schedule.kind", "polynomial"]),
        (with_value(BF16, "lr", "-1"), [], ["lr = -1.0"]),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_refused_and_leaves_nothing(
    text: str, arguments: list[str], parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"data": str(prepared(tmp_path)), "run": str(tmp_path / "run")}
    assert main(["from-reference", text, *(word.format(**places) for word in arguments)]) == 2
    error = capsys.readouterr().err
    for part in parts:
        assert part in error
    assert not (tmp_path / "run").exists()


def test_passes_over_the_text_can_be_allowed(tmp_path: Path) -> None:
    arguments = ["--data", str(prepared(tmp_path)), "--run-dir", str(tmp_path / "run"), "--epochs", "9"]
    assert main(["from-reference", TEN_TIMES, *arguments]) == 0
    assert read_run_file(tmp_path / "run" / "run.yaml").spec.data.epochs == 9


def test_the_command_can_come_from_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with (COMMANDS / "bf16.sh").open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["from-reference", "-"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == merge(content_of(BF16), {"data": {"epochs": 1}})
