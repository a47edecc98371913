"""From a launch command to a study of one run: the configuration, and what a reader should know of the translation; and
the run.yaml of the command, for data that are prepared.

translation = translate(read_command(text))
config = parse_study(translation.content)    # or an overlay over config.yaml
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mpadam.reference.command import Command, Value
from mpadam.reference.flags import FLAGS, MAPPED, UNMAPPED
from mpadam.reference.models import STEPS_1X, model_of
from mpadam.study.auto import auto_here
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, run_keys
from mpadam.study.load import merge, parse_study
from mpadam.study.run_config import RegimeConfig
from mpadam.study.run_folder import read_json
from mpadam.study.spec import RunFile, resolve, run_request

# --- regime -----------------------------------------------------------------------------------------------------------


#: `--fp8_format` -> `masters`
MASTERS = {"e5m2": "fp8", "e4m3": "fp8e4m3"}
RECIPE = "hybrid_delayed"
_OPTIONS = {
    "masters": {"fp8_block_size": "block_size", "fp8_pow2_scale": "power_of_two_scale"},
    "compute": {
        "te_amax_history": "amax_history",
        "te_margin": "margin",
        "te_fp8_eval": "fp8_eval",
    },
}


def regime_of(given: Mapping[str, Value]) -> tuple[dict[str, Any], str]:
    """The regime's fields, and its name.

    Raises ValueError for an FP8 flag without the switch that gives it a meaning, and for unknown formats and recipes.
    """
    masters, compute = _masters(given), "fp8" if given.get("te_fp8_gemm") else "bf16"
    _check_orphans(given)
    options: dict[str, Any] = {}
    if masters != "bf16":
        options |= _options(given, "masters") | {"power_of_two_scale": bool(given.get("fp8_pow2_scale", False))}
    if compute == "fp8":
        options |= _options(given, "compute")
        if (recipe := given.get("te_recipe", RECIPE)) != RECIPE:
            raise ValueError(f"--te_recipe {recipe}: not one of {RECIPE}")
    other = {key: value for key, value in options.items() if value != RegimeConfig.model_fields[key].default}
    return {"masters": masters, "compute": compute, **other}, f"{masters}-{compute}"


def _masters(given: Mapping[str, Value]) -> str:
    if not given.get("fp8_true_master"):
        return "bf16"
    name = str(given.get("fp8_format", "e5m2"))
    if name not in MASTERS:
        raise ValueError(f"--fp8_format {name}: not one of {', '.join(MASTERS)}")
    return MASTERS[name]


def _check_orphans(given: Mapping[str, Value]) -> None:
    """A format without FP8 masters is a command that does not say what its author meant."""
    for prefix, switch in (("fp8_", "fp8_true_master"), ("te_", "te_fp8_gemm")):
        orphans = [name for name in given if name.startswith(prefix) and name != "fp8_adam_state_dtype"]
        if orphans and switch not in given:
            raise ValueError(f"--{orphans[0]} means nothing without --{switch}: add that, or drop it")


def _options(given: Mapping[str, Value], where: str) -> dict[str, Any]:
    return {key: given[flag] for flag, key in _OPTIONS[where].items() if flag in given}


# --- study ------------------------------------------------------------------------------------------------------------


OPTIMIZER, ENTRY = "m-plus-adam", "m-plus-adam@reference"
TOKENIZERS = {"hf-internal-testing/llama-tokenizer": "data/tokenizers/llama", "t5-base": "data/tokenizers/t5-base"}
NOBODY = "YOUR_WANDB_ENTITY"
T = TypeVar("T", bound=Value)


@dataclass(frozen=True)
class Translation:
    """content: a whole study of one run, which also serves as an overlay. notes: a line each.

    processes: GPUs that the command starts.
    """

    content: dict[str, Any]
    notes: tuple[str, ...]
    processes: int


def translate(command: Command) -> Translation:
    """The study of a launch command.

    Raises ValueError for a flag that is missing, or whose value this project cannot follow; it names flag and remedy.
    """
    _check_required(command.given)
    regime, regime_name = regime_of(command.given)
    given = {**_defaults(command), **command.given}
    _check_fixed(given)
    model, budget, steps_1x, shape = _model(given)
    steps = _get(given, "num_training_steps", int)
    seed = _get(given, "seed", int)
    batch = _batch(given, command.processes)
    content = {
        "study": _slug(_get(given, "name", str, _get(given, "run_name", str, "reference"))),
        "data": _data(given),
        "tokenizer": _tokenizer(given),
        "models": {model: {**shape, "steps_1x": steps_1x}},
        "budgets": [budget],
        "regimes": {regime_name: regime},
        "optimizers": {ENTRY: {"optimizer": OPTIMIZER, "values": _values(given)}},
        "seeds": [seed],
        "training": {**batch, **_training(given), **_schedules(given, steps)},
        "evaluation": {"every": given.get("eval_every"), "batch_size": batch["micro_batch_size"]},
        # Nothing is searched: the entry has no search. `fixed` would ask the same of all entries that this overlays.
        "tuning": {"mode": "search", "seed": seed + 1000},
        "wandb": _wandb(given),
        "grids": [
            {
                "name": "reference",
                "models": [model],
                "budgets": [budget],
                "regimes": [regime_name],
                "optimizers": [ENTRY],
                "seeds": [seed],
            }
        ],
    }
    return Translation(content, tuple(_notes(command)), command.processes)


def run_of(config: StudyConfig) -> RunKey:
    (key,) = run_keys(config)
    return key


# --- parts of the study ----------------------------------------------------------------------------------------------


def _get(given: Mapping[str, Value], name: str, kind: type[T], default: T | None = None) -> T:
    value = given.get(name, default)
    assert isinstance(value, kind), name  # the table of flags says of which kind each is
    return value


def _check_required(given: Mapping[str, Value]) -> None:
    missing = [flag.name for flag in MAPPED if flag.required and flag.name not in given]
    if missing:
        raise ValueError(f"--{missing[0]} is missing: {FLAGS[missing[0]].note}; the README gives it no default")


def _check_fixed(given: Mapping[str, Value]) -> None:
    """Flags whose other values would mean something that this project does not do."""
    steps = given["num_training_steps"]
    fixed: dict[str, tuple[Value, ...]] = {
        "optimizer": ("m_adam",),
        "dtype": ("bfloat16",),
        "m_adam_norm_type": ("none",),
        "scheduler_effective_training_steps": (0, steps),
        "m_adam_total_steps_e": (steps,),
    }
    for name, accepted in fixed.items():
        if name in given and given[name] not in accepted:
            allowed = " or ".join(map(str, accepted))
            raise ValueError(f"--{name} {given[name]}: only {allowed} is understood ({FLAGS[name].note})")


def _model(given: Mapping[str, Value]) -> tuple[str, int, int, dict[str, int]]:
    """Name, budget, steps at budget 1, shape."""
    name, shape = model_of(_get(given, "model_config", str))
    steps = _get(given, "num_training_steps", int)
    steps_1x = STEPS_1X.get(name, steps)
    return (name, steps // steps_1x, steps_1x, shape) if steps and steps % steps_1x == 0 else (name, 1, steps, shape)


def _batch(given: Mapping[str, Value], processes: int) -> dict[str, int]:
    """README: global batch = batch_size x GPUs x gradient accumulation."""
    micro = _get(given, "batch_size", int)
    total = _get(given, "total_batch_size", int, micro * processes)
    if total < 1 or micro < 1 or total % (micro * processes):
        raise ValueError(
            f"--total_batch_size {total} is no multiple of --batch_size {micro} times --nproc_per_node {processes}; "
            f"write e.g.  --total_batch_size {max(1, micro * processes)}"
        )
    return {"global_batch_size": total, "micro_batch_size": micro}


def _data(given: Mapping[str, Value]) -> dict[str, Any]:
    cut = {"sequence_length": given["max_length"], "validation_tokens": given["num_eval_tokens"]}
    return {"source": "c4_folder", "path": "data/c4", "revision": None, "sequences": "truncate_pad", **cut}


def _tokenizer(given: Mapping[str, Value]) -> dict[str, Any]:
    name = _get(given, "tokenizer", str)
    return {"source": "folder", "path": TOKENIZERS.get(name, name), "repo": None, "revision": None}


def _values(given: Mapping[str, Value]) -> dict[str, float]:
    """Hyper-parameters under our names: `_m` is the additive branch, `_e` the multiplicative one."""
    place = "optimizers.values."
    flags = [flag for flag in MAPPED if flag.to.startswith(place) and flag.name in given]
    return {flag.to.removeprefix(place): _get(given, flag.name, float) for flag in flags}


def _training(given: Mapping[str, Value]) -> dict[str, Any]:
    state = _get(given, "fp8_adam_state_dtype", str, "bfloat16")
    if state not in _STATE_DTYPES:
        raise ValueError(f"--fp8_adam_state_dtype {state}: not one of {', '.join(_STATE_DTYPES)}")
    training = {
        "clip_norm": given["max_grad_norm"] or None,
        "gradient_dtype": "bf16",
        "state_dtype": _STATE_DTYPES[state],
        "device": "cuda",
    }
    return training | {key: given[flag] for flag, key in _INTERVALS.items() if flag in given}


_INTERVALS = {
    "save_every": "checkpoint_every",
    "plot_every": "plot_every",
    "check_nonfinite_every": "check_nonfinite_every",
}
_STATE_DTYPES = {"bfloat16": "bf16", "float32": "fp32"}


def _schedules(given: Mapping[str, Value], steps: int) -> dict[str, Any]:
    additive = {
        "kind": given["scheduler"],
        "warmup": _share("warmup_steps", given, steps),
        "min_ratio": given["min_lr_ratio"],
    }
    multiplicative = {
        "kind": given["m_adam_sched_e"],
        "warmup": _share("m_adam_warmup_steps_e", given, steps),
        "min_ratio": given["m_adam_min_lr_ratio_e"],
        "alpha": given["m_adam_logcosine_alpha_e"],
    }
    return {"schedule": additive, "schedule_mult": None if given.get("m_adam_tie_e_to_m") else multiplicative}


def _share(name: str, given: Mapping[str, Value], steps: int) -> float:
    """Steps of warm-up as the share of the run that gives them back exactly."""
    warmup = _get(given, name, int)
    if not 0 <= warmup <= steps:
        raise ValueError(f"--{name} {warmup}: the run has {steps} steps; give at most as many")
    return warmup / steps if warmup else 0.0


def _wandb(given: Mapping[str, Value]) -> dict[str, Any]:
    entity = given.get("wandb_entity")
    settings = {"project": given.get("wandb_project"), "entity": None if entity == NOBODY else entity}
    return {key: value for key, value in settings.items() if value is not None}


def _slug(name: str) -> str:
    """A name that can be a folder's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "reference"


def _defaults(command: Command) -> dict[str, Value]:
    """What is taken for the flags that were not given, among those that the program and the FP8 switches know."""
    switches = {"fp8_": "fp8_true_master", "te_": "te_fp8_gemm"}
    return {
        flag.name: flag.default
        for flag in MAPPED
        if flag.default is not None
        and flag.script in (None, command.script)
        and all(switch in command.given for prefix, switch in switches.items() if flag.name.startswith(prefix))
    }


def _notes(command: Command) -> list[str]:
    """What was left out of the command, and what the command left out."""
    unused = [f"--{name}: not used: {FLAGS[name].note}" for name in command.given if FLAGS[name] in UNMAPPED]
    taken = [f"--{name}: not given: {value}" for name, value in _defaults(command).items() if name not in command.given]
    return [*unused, *taken]


# --- run.yaml ---------------------------------------------------------------------------------------------------------


def run_file(content: Mapping[str, Any], *, data: Path, run_dir: Path) -> RunFile:
    """What `run.yaml` in `run_dir` has to say.

    content: the study of the command (`Translation.content`).
    data: folder of prepared data, with manifest.json; its text and tokenizer are what the run trains on.
    Raises ValueError where the data are cut otherwise than the command says, or do not suffice.
    """
    manifest = read_manifest(data)
    settings = manifest["request"]["sequences"]
    _check_cut(content["data"], settings, data)
    config = parse_study(merge(content, {"data": settings}))
    request = run_request(config, run_of(config))
    return resolve(
        request,
        manifest=manifest,
        selected={},
        data=os.path.relpath(data, run_dir),
        auto=auto_here(request),
    )


def read_manifest(data: Path) -> dict[str, Any]:
    """The manifest of prepared data.

    Raises ValueError where there is none.
    """
    manifest = read_json(data / "manifest.json")
    if manifest is None or "request" not in manifest:
        raise ValueError(f"--data {data}: no manifest.json of prepared data; make it with  mpadam data --out {data}")
    return manifest


def _check_cut(wanted: Mapping[str, Any], settings: Mapping[str, Any], data: Path) -> None:
    flags = {"sequence_length": "max_length", "validation_tokens": "num_eval_tokens"}
    for key, flag in flags.items():
        if key in wanted and wanted[key] != settings[key]:
            raise ValueError(
                f"--{flag} {wanted[key]}: the data in {data} were prepared with {key} {settings[key]}; prepare them "
                f"again, or write  --{flag} {settings[key]}"
            )
