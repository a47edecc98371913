"""What a launch command of the reference implementation says: the README's three, every flag, every refusal."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from reference_readme import BF16, FP8_BF16, FP8_FP8, content_of, plus, with_steps, with_value, without, words_of

from mpadam.reference.command import read_command
from mpadam.reference.flags import CHECKED, FLAGS, FP8_SCRIPT, MAPPED, UNMAPPED
from mpadam.reference.study import run_of, translate
from mpadam.study.load import parse_study

ROOT = Path(__file__).parents[2]


# --- the README's commands -------------------------------------------------------------------------------------------


def test_the_bf16_command_is_the_run_that_the_paper_describes() -> None:
    """The reference settings of docs/algorithm.md, "Names of rates"."""
    config = parse_study(content_of(BF16))
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
    """docs/algorithm.md, "Formats": e5m2, blocks of 256, powers of two; delayed scaling, history 16, margin 0."""
    bf16, fp8_bf16, fp8_fp8 = map(content_of, (BF16, FP8_BF16, FP8_FP8))
    assert bf16["regimes"] == {"bf16-bf16": {"masters": "bf16", "compute": "bf16"}}
    assert fp8_bf16["regimes"] == {"fp8-bf16": {"masters": "fp8", "compute": "bf16"}}
    assert fp8_fp8["regimes"] == {"fp8-fp8": {"masters": "fp8", "compute": "fp8"}}
    for other in (fp8_bf16, fp8_fp8):
        assert other["optimizers"] == bf16["optimizers"]
        own = {"plot_every": 200, "check_nonfinite_every": 1}  # which these commands give and the other does not
        assert other["training"] == {k: v for k, v in bf16["training"].items() if k != "checkpoint_every"} | own
        assert other["data"] == bf16["data"]


def test_both_gpus_of_the_readme_are_seen() -> None:
    assert translate(read_command(BF16)).processes == 2


@pytest.mark.parametrize(("text", "name"), [(FP8_BF16, "fp8-bf16"), (FP8_FP8, "fp8-fp8")])
def test_an_fp8_command_is_a_study(text: str, name: str) -> None:
    assert run_of(parse_study(content_of(text))).regime == name


def test_a_shell_sees_the_samewords_of(tmp_path: Path) -> None:
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
    used = {word[2:] for text in (BF16, FP8_BF16, FP8_FP8) for word in words_of(text) if word.startswith("--")}
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
    text = next((t for t in (BF16, FP8_FP8) if f"--{flag.name}" in words_of(t)), plus(FP8_FP8, "--te_fp8_eval"))
    if flag.kind == "switch":
        changed = content_of(without(text, flag.name, *_depend_on(flag.name)))
    elif flag.name == "num_training_steps":
        changed = content_of(with_steps(text, 20_000))
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
        f.name for f in MAPPED if f.name.startswith(prefix) and f.name != switch and f"--{f.name}" in words_of(FP8_FP8)
    ]


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
    """The trap of docs/algorithm.md, "Names of rates": a flag changes its branch, and nothing of the other."""
    (before,), (after,) = (content_of(text)["optimizers"].values() for text in (BF16, with_value(BF16, flag, value)))
    assert after["values"] == {**before["values"], key: value}


def test_e_schedules_are_the_multiplicative_ones() -> None:
    text = with_value(with_value(BF16, "m_adam_warmup_steps_e", 1000), "m_adam_min_lr_ratio_e", 0.1)
    before, after = content_of(BF16)["training"], content_of(text)["training"]
    assert after["schedule"] == before["schedule"]
    assert after["schedule_mult"] == {**before["schedule_mult"], "warmup": 0.1, "min_ratio": 0.1}


def test_a_tied_multiplicative_branch_follows_the_additive_schedule() -> None:
    assert content_of(with_value(BF16, "m_adam_tie_e_to_m", "true"))["training"]["schedule_mult"] is None


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (plus(BF16, "--m_adam_lr_m 1e-3"), ["--m_adam_lr_m: unknown flag", "did you mean --m_adam_lr_e?"]),
        (plus(BF16, "--xyzzy 3"), ["--xyzzy: unknown flag", "known: --model_config"]),
        (plus(BF16, "--lr 1e-3"), ["--lr is given twice"]),
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
