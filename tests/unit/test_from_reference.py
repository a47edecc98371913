"""Launch commands of the reference implementation become runs of this project; the README's three are in
`reference_commands/`."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml

from mpadam.cli import main
from mpadam.reference.command import read_command
from mpadam.reference.flags import CHECKED, FLAGS, FP8_SCRIPT, MAPPED, UNMAPPED
from mpadam.reference.study import run_of, study_of, translate
from mpadam.study.config import RegimeConfig
from mpadam.study.load import load_study, merge, parse_study, read_yaml
from mpadam.study.spec import read_run_file

ROOT = Path(__file__).parents[2]
COMMANDS = Path(__file__).parent / "reference_commands"
BF16, FP8_BF16, FP8_FP8 = (
    (COMMANDS / f"{name}.sh").read_text(encoding="utf-8") for name in ("bf16", "fp8_bf16", "fp8_fp8")
)

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
CUT = {"sequences": "pack", "sequence_length": 128, "validation_tokens": 32_768}
MANIFEST = {
    "fingerprint": "f" * 16,
    "tokenizer_fingerprint": "t" * 16,
    "vocab_size": 1024,
    "train_sequences": 6_000_000,
    "request": {"sequences": CUT},
}


def content_of(text: str) -> dict:
    return translate(read_command(text)).content


def without(text: str, *flags: str) -> str:
    """The command without these flags and their values."""
    words = _words(text)
    for flag in flags:
        at = words.index(f"--{flag}")
        del words[at : at + (1 if FLAGS[flag].kind == "switch" else 2)]
    return shlex.join(words)


def plus(text: str, words: str) -> str:
    return f"{text.rstrip()} {words}"


def with_value(text: str, flag: str, value: object) -> str:
    """The command with another value for a flag that it has."""
    words = _words(text)
    words[words.index(f"--{flag}") + 1] = str(value)
    return shlex.join(words)


def _words(text: str) -> list[str]:
    return shlex.split(text.partition("\n")[2].replace("\\\n", " ") if text.startswith("#") else text)


# --- the README's commands -------------------------------------------------------------------------------------------


def test_the_bf16_command_is_the_run_that_the_paper_describes() -> None:
    """paper.md section 2: eta_a 8e-5, eta_m 0.004, b1 0.87, b2 0.98, eps 1e-20, decay 0.1 and 0.01, clip 1.0."""
    config = study_of(content_of(BF16))
    key = run_of(config)
    assert (key.model, key.budget, key.regime, key.seed) == ("60m", 1, "bf16-bf16", 0)
    assert str(config.optimizer_name(key.optimizer)) == "m-plus-adam"
    assert config.optimizers[key.optimizer].values == {
        "lr": 8e-5,
        "lr_mult": 0.004,
        "beta1": 0.87,
        "beta2": 0.98,
        "eps": 1e-20,
        "weight_decay": 0.1,
        "weight_decay_mult": 0.01,
    }
    assert config.models["60m"].parameters(32_000) == 58_073_600
    assert config.models["60m"].steps(1, vocab_size=32_000, positions_per_step=1) == 10_000
    training = config.training
    assert (training.global_batch_size, training.micro_batch_size, training.clip_norm) == (512, 256, 1.0)
    assert (training.state_dtype, training.gradient_dtype, training.checkpoint_every) == ("bf16", "bf16", 10_000)
    assert (training.schedule.kind, training.schedule.warmup, training.schedule.min_ratio) == ("linear", 0.2, 0.0)
    assert training.schedule_mult is not None
    assert training.schedule_mult.model_dump() == {"kind": "logcosine", "warmup": 0.2, "min_ratio": 0.0, "alpha": 3.0}
    assert (config.data.sequence_length, config.data.validation_tokens) == (256, 10_000_000)
    assert config.evaluation.every == 10_000


def test_the_fp8_commands_are_the_same_run_in_other_regimes() -> None:
    """paper.md section 3: e5m2, blocks of 256, powers of two; hybrid delayed scaling, history 16, margin 0."""
    bf16, fp8_bf16, fp8_fp8 = map(content_of, (BF16, FP8_BF16, FP8_FP8))
    assert bf16["regimes"] == {"bf16-bf16": {"masters": "bf16", "compute": "bf16"}}
    assert fp8_bf16["regimes"] == {"fp8-bf16": {"masters": "fp8", "compute": "bf16"}}
    assert fp8_fp8["regimes"] == {"fp8-fp8": {"masters": "fp8", "compute": "fp8"}}
    for other in (fp8_bf16, fp8_fp8):
        assert other["optimizers"] == bf16["optimizers"]
        assert other["training"] == {k: v for k, v in bf16["training"].items() if k != "checkpoint_every"}
        assert other["data"] == bf16["data"]


def test_both_gpus_of_the_readme_are_seen() -> None:
    assert translate(read_command(BF16)).processes == 2


@pytest.mark.parametrize(("text", "name"), [(FP8_BF16, "fp8-bf16"), (FP8_FP8, "fp8-fp8")])
def test_an_fp8_command_is_a_study_once_the_configuration_knows_its_regime(text: str, name: str) -> None:
    known = all(
        value in get_args(RegimeConfig.model_fields[field].annotation)
        for field, value in content_of(text)["regimes"][name].items()
    )
    if known:
        assert run_of(study_of(content_of(text))).regime == name
    else:
        with pytest.raises(ValueError, match=f"regime {name}: this version does not train in it yet"):
            study_of(content_of(text))


def test_a_shell_sees_the_same_words(tmp_path: Path) -> None:
    """bash itself, with a stand-in for torchrun, gives the flags that we read, placeholders apart."""
    stand_in = tmp_path / "torchrun"
    stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TRAIN_DATA": "${TRAIN_DATA}", "VAL_DATA": "${VAL_DATA}"}
    for text in (BF16, FP8_BF16, FP8_FP8):
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=environment, check=True)
        words = done.stdout.splitlines()
        assert read_command(shlex.join(["torchrun", *words])) == read_command(text)
        assert read_command(text).given["local_path_train"] == "${TRAIN_DATA}"


# --- the table of flags ----------------------------------------------------------------------------------------------


def test_every_flag_of_the_readme_is_mapped_or_listed_with_a_reason() -> None:
    used = {word[2:] for text in (BF16, FP8_BF16, FP8_FP8) for word in _words(text) if word.startswith("--")}
    used = {name for name in used if "=" not in name} - {"standalone"}
    assert used <= set(FLAGS)
    assert set(FLAGS) - used == {"te_fp8_eval"}, "which the README names in its text"
    for flag in (*CHECKED, *UNMAPPED):
        assert not flag.to
        assert len(flag.note) > 10, flag.name
    names = [flag.name for flag in (*MAPPED, *CHECKED, *UNMAPPED)]
    assert len(names) == len(set(names))


def test_the_page_lists_every_flag_with_what_becomes_of_it() -> None:
    page = (ROOT / "docs/reference-commands.md").read_text(encoding="utf-8")
    rows = {m[1]: m[2] for m in re.finditer(r"^\| `--(\w+)` \| (.*) \|$", page, re.MULTILINE)}
    assert set(rows) == set(FLAGS)
    for name, row in rows.items():
        if FLAGS[name].to:
            assert f"`{FLAGS[name].to}`" in row, name


OTHER = {
    "model_config": "llama_configs/llama_130m.json",
    "tokenizer": "t5-base",
    "batch_size": 128,
    "total_batch_size": 1024,
    "scheduler": "cosine",
    "warmup_steps": 500,
    "m_adam_sched_e": "cosine",
    "m_adam_warmup_steps_e": 100,
    "m_adam_tie_e_to_m": "true",
    "max_grad_norm": 0.0,
    "fp8_format": "e4m3",
    "fp8_adam_state_dtype": "float32",
    "name": "another",
    "run_name": "another",
    "wandb_project": "another",
    "wandb_entity": "somebody",
}
#: flags of which the README's value is the only one
ALONE = {"optimizer", "dtype", "te_recipe"}


@pytest.mark.parametrize("flag", [f for f in MAPPED if f.name not in ALONE], ids=lambda flag: flag.name)
def test_every_mapped_flag_changes_the_study_where_the_table_says(flag) -> None:
    text = next((t for t in (BF16, FP8_FP8) if f"--{flag.name}" in _words(t)), plus(FP8_FP8, "--te_fp8_eval"))
    if flag.kind == "switch":
        changed = content_of(without(text, flag.name, *_depend_on(flag.name)))
    elif flag.name == "num_training_steps":
        changed = content_of(_with_steps(text, 20_000))
    else:
        value = OTHER.get(flag.name, read_command(text).given[flag.name] + 1 if flag.kind == "int" else 0.5)
        changed = content_of(with_value(text, flag.name, value))
    before = content_of(text)
    assert {key for key in before if changed[key] != before[key]} >= {flag.to.partition(".")[0]}
    *_, last = flag.to.split(".")
    assert _find(changed, flag.to, last) != _find(before, flag.to, last)


def _depend_on(switch: str) -> list[str]:
    prefix = {"fp8_true_master": "fp8_", "te_fp8_gemm": "te_"}.get(switch, "-")
    return [
        f.name for f in MAPPED if f.name.startswith(prefix) and f.name != switch and f"--{f.name}" in _words(FP8_FP8)
    ]


def _with_steps(text: str, steps: int) -> str:
    return with_value(with_value(text, "num_training_steps", steps), "m_adam_total_steps_e", steps)


def _find(content: dict, to: str, last: str) -> object:
    """What stands at a key of the table: `optimizers.values.lr` is that of the one entry."""
    section, *path = to.split(".")
    here = content[section]
    if section in ("optimizers", "regimes"):
        (here,) = here.values()
    for part in path:
        here = here.get(part) if isinstance(here, dict) else None
    return here


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("lr", "lr", 1e-3),
        ("m_adam_lr_e", "lr_mult", 2e-3),
        ("m_adam_weight_decay_m", "weight_decay", 0.3),
        ("m_adam_weight_decay_e", "weight_decay_mult", 0.4),
    ],
)
def test_m_is_additive_and_e_is_multiplicative(flag: str, key: str, value: float) -> None:
    """The trap of paper.md section 1: changing one flag changes that branch, and nothing of the other."""
    (before,), (after,) = (content_of(text)["optimizers"].values() for text in (BF16, with_value(BF16, flag, value)))
    assert after["values"] == {**before["values"], key: value}


def test_e_schedules_are_the_multiplicative_ones() -> None:
    text = with_value(with_value(BF16, "m_adam_warmup_steps_e", 1000), "m_adam_min_lr_ratio_e", 0.1)
    before, after = content_of(BF16)["training"], content_of(text)["training"]
    assert after["schedule"] == before["schedule"]
    assert after["schedule_mult"] == {**before["schedule_mult"], "warmup": 0.1, "min_ratio": 0.1}


def test_a_tied_multiplicative_branch_follows_the_additive_schedule() -> None:
    assert content_of(with_value(BF16, "m_adam_tie_e_to_m", "true"))["training"]["schedule_mult"] is None


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [7, 9_999, 10_000, 123_456])
@pytest.mark.parametrize("warmup", [0, 1, 3, 7])
def test_a_warm_up_in_steps_comes_back_exactly(steps: int, warmup: int) -> None:
    text = with_value(with_value(_with_steps(BF16, steps), "warmup_steps", warmup), "m_adam_warmup_steps_e", 0)
    assert round(content_of(text)["training"]["schedule"]["warmup"] * steps) == warmup


@pytest.mark.parametrize(
    ("model", "steps", "budget", "steps_1x"),
    [("60m", 10_000, 1, 10_000), ("60m", 80_000, 8, 10_000), ("350m", 60_000, 1, 60_000), ("130m", 777, 1, 777)],
)
def test_steps_are_a_budget_where_they_are_a_multiple(model: str, steps: int, budget: int, steps_1x: int) -> None:
    text = with_value(with_value(_with_steps(BF16, steps), "warmup_steps", 0), "m_adam_warmup_steps_e", 0)
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


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (plus(BF16, "--m_adam_lr_m 1e-3"), ["--m_adam_lr_m: unknown flag", "did you mean --m_adam_lr_e?"]),
        (plus(BF16, "--xyzzy 3"), ["--xyzzy: unknown flag", "known: --model_config"]),
        (plus(BF16, "--lr 1e-3"), ["--lr stands twice"]),
        (plus(without(BF16, "eval_every"), "--eval_every"), ["--eval_every needs a value (int)"]),
        (plus(BF16, "stray"), ["unexpected word 'stray'"]),
        (plus(without(BF16, "use_flash_attention"), "--use_flash_attention=1"), ["takes no value"]),
        (with_value(BF16, "lr", "fast"), ["--lr fast: expected a number"]),
        (with_value(BF16, "seed", "1.5"), ["--seed 1.5: expected a whole number"]),
        (with_value(BF16, "m_adam_tie_e_to_m", "no"), ["--m_adam_tie_e_to_m no: expected true or false"]),
        (without(BF16, "m_adam_lr_e"), ["--m_adam_lr_e is missing", "multiplicative"]),
        (without(BF16, "model_config"), ["--model_config is missing"]),
        (with_value(BF16, "optimizer", "adamw"), ["--optimizer adamw: only m_adam"]),
        (with_value(BF16, "dtype", "float32"), ["--dtype float32: only bfloat16"]),
        (with_value(BF16, "m_adam_norm_type", "rms"), ["--m_adam_norm_type rms: only none"]),
        (with_value(BF16, "m_adam_total_steps_e", 5000), ["--m_adam_total_steps_e 5000: only 10000"]),
        (with_value(BF16, "scheduler_effective_training_steps", 5), ["only 0 or 10000"]),
        (with_value(BF16, "warmup_steps", 10_001), ["--warmup_steps 10001", "10000 steps"]),
        (with_value(BF16, "total_batch_size", 500), ["--total_batch_size 500", "--total_batch_size 512"]),
        (with_value(BF16, "model_config", "llama_2b.json"), ["llama_2b.json", "llama_60m.json"]),
        (with_value(FP8_FP8, "fp8_format", "e3m4"), ["--fp8_format e3m4: not one of e5m2, e4m3"]),
        (with_value(FP8_FP8, "te_recipe", "current"), ["--te_recipe current"]),
        (with_value(FP8_FP8, "fp8_adam_state_dtype", "fp16"), ["--fp8_adam_state_dtype fp16", "float32"]),
        (without(FP8_BF16, "fp8_true_master"), ["--fp8_format means nothing without --fp8_true_master"]),
        (without(FP8_FP8, "te_fp8_gemm"), ["--te_recipe means nothing without --te_fp8_gemm"]),
        (plus(BF16, "--fp8_true_master"), ["--fp8_true_master: main.py does not take it", FP8_SCRIPT]),
        (BF16.replace("main.py", "run.py"), ["no script in the command", "main.py"]),
        (BF16.replace("torchrun", "accelerate"), ["starts with 'accelerate'", "torchrun"]),
        (BF16.replace("--standalone", "--standalon"), ["--standalon: unknown flag", "--standalone?"]),
        (BF16.replace("--standalone", "--nnodes=2"), ["--nnodes 2", "--nnodes=1"]),
        (BF16.replace("--dtype bfloat16 \\", "--dtype bfloat16"), ["is a backslash missing?"]),
        (plus(BF16, '--name "open'), ["check its quotes"]),
        ("# nothing", ["there is none"]),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(text: str, parts: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        content_of(text)
    for part in parts:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\nexport TRAIN_DATA=/data/c4_train\nVAL_DATA='/data/c4 validation'\n\n" + BF16,
        BF16.replace("torchrun", "CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=8 torchrun"),
        BF16.replace("\\\n", "\\  \r\n"),
        BF16.replace("--nproc_per_node=2", "--nproc-per-node 2"),
        BF16.replace("--lr 8e-5", "--lr=8e-5").replace("--seed 0", "--seed=0"),
        BF16.replace("main.py", "code/reference/main.py"),
    ],
    ids=["script", "environment", "trailing blanks", "hyphens", "equals signs", "path"],
)
def test_the_ways_in_which_a_command_is_written_down(text: str) -> None:
    assert translate(read_command(text)) == translate(read_command(BF16))


def test_python_alone_starts_one_process() -> None:
    command = read_command(BF16.replace("torchrun --standalone --nproc_per_node=2", "python"))
    assert command.processes == 1


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


TEN_TIMES = for_prepared(_with_steps(BF16, 100_000))


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
