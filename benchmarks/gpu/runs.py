"""Trainings of a check: as `mpadam train` does them, on invented text, each in a process of its own.

The same run is trained twice, and once more with a kill in its second half; both have the bits of the first.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import shutil
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu.parts import Case, FailedError, KilledError, Row, Setting, apart, need
from gpu.products import digest
from mpadam.data import TokenData
from mpadam.data.stages import prepare
from mpadam.machine import gpu_name
from mpadam.model.capabilities import COMPUTE
from mpadam.numerics.formats import BY_MASTERS
from mpadam.study.auto import auto_here
from mpadam.study.grid import RunKey
from mpadam.study.run_folder import RunFolder, read_metrics
from mpadam.study.spec import read_run_file, resolve, run_request, write_run_file
from mpadam.study.text import DataConfig, TokenizerConfig
from mpadam.training.run import train_folder
from mpadam.training.stopping import Stopper

KINDS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {},
    "native FP8": {"regime": "bf16-fp8", "fp8_backend": "native"},
    "Transformer Engine": {"regime": "bf16-fp8", "fp8_backend": "transformer_engine"},
    "FlashAttention": {"attention": "flash_attention_2"},
}
"""Trainings whose bits are compared: fields of `write_run`."""
CLOSE = 0.02
"""Largest relative difference of two losses that are the same up to rounding."""


def bits_cases(setting: Setting) -> Iterator[Case]:
    """Equal bits of each kind, and Liger against eager."""
    for name, changes in KINDS.items():
        yield Case(name, partial(bits, setting, name, changes))
    yield Case("Liger", partial(liger, setting))


def regime_cases(setting: Setting) -> Iterator[Case]:
    """Every regime, its FP8 products native."""
    for masters in BY_MASTERS:
        for compute in COMPUTE:
            regime = f"{masters}-{compute}"
            yield Case(regime, partial(one_regime, setting, regime))


def bits(setting: Setting, name: str, changes: Mapping[str, Any]) -> list[Row]:
    """A run trained twice, and killed after its checkpoint and resumed."""
    folders = [write_run(setting, f"{name}, {time}", **changes) for time in ("once", "twice", "killed")]
    first, second = apart(train_here, folders[0]), apart(train_here, folders[1])
    saved_at = setting.steps // 2
    try:
        apart(train_here, folders[2], saved_at + 2)
    except KilledError:
        third = apart(train_here, folders[2])
    else:
        raise FailedError(f"was not killed after step {saved_at + 2}")
    faults = [_differing("trained twice", first, second), _differing("killed and resumed", first, third)]
    if third["attempts"] != 2:
        faults.append("started from the beginning after the kill")
    values = {**_losses(first), "steps": setting.steps, "resumed from": saved_at, "tokens/s": first["tokens_per_s"]}
    forget(*folders)
    return [Row(name, values, "; ".join(filter(None, [*faults, _unlearned(first)])))]


def liger(setting: Setting) -> list[Row]:
    """Liger's kernels against Transformers' own."""
    folders = [write_run(setting, f"Liger {on}", liger=on) for on in (True, False)]
    ours, eager = (apart(train_here, folder) for folder in folders)
    pairs = list(zip(losses_of(ours), losses_of(eager), strict=True))
    difference = max(abs(a - b) / b for a, b in pairs)
    far = "" if difference <= CLOSE else f"losses are up to {difference:.1%} away from those without Liger"
    values = {**_losses(ours), "largest difference of losses": difference, "tokens/s": ours["tokens_per_s"]}
    forget(*folders)
    return [Row("Liger", values, far or _unlearned(ours))]


def one_regime(setting: Setting, regime: str) -> list[Row]:
    """A run in one regime learns; eager, which saves the time to compile."""
    folder = write_run(setting, f"regime {regime}", regime=regime, fp8_backend="native", compile=False)
    found = apart(train_here, folder)
    flushed = {key: found["records"][-1].get(key) for key in ("fp8_flushed_share", "nvfp4_flushed_share")}
    values = {**_losses(found), **flushed, "tokens/s": found["tokens_per_s"], "peak GB": found["peak_bytes"] / 1e9}
    forget(folder)
    return [Row(regime, values, _unlearned(found))]


def _differing(what: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Where two trainings differ; "" where they have the same bits."""
    for a, b in zip(one["records"], other["records"], strict=False):
        if a != b:
            return f"{what}: other numbers from step {a['step']} on"
    if len(one["records"]) != len(other["records"]):
        return f"{what}: {len(one['records'])} and {len(other['records'])} steps"
    return "" if one["digest"] == other["digest"] else f"{what}: other weights or scales"


def _losses(found: Mapping[str, Any]) -> dict[str, float]:
    losses = losses_of(found)
    return {"first loss": losses[0], "last loss": losses[-1]}


def losses_of(found: Mapping[str, Any]) -> list[float]:
    """The loss of each step."""
    return [record["loss"] for record in found["records"]]


def _unlearned(found: Mapping[str, Any]) -> str:
    losses = losses_of(found)
    finite = all(map(math.isfinite, losses))
    return "" if finite and losses[-1] < losses[0] else f"loss {losses[0]:.3f} to {losses[-1]:.3f}"


# --- in the process of a training ------------------------------------------------------------------------------------


class _Killed(Stopper):
    """Ends the process as SIGKILL does, after so many updates."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self._left = updates

    @property
    def reason(self) -> str | None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return None


def train_here(folder: Path, killed_after: int | None = None) -> dict[str, Any]:
    """Train a run folder, and tell what came of it."""
    need_for(folder)
    code = train_folder(folder, stop=Stopper() if killed_after is None else _Killed(killed_after))
    if code:
        raise FailedError(f"mpadam train would end with code {code}")
    run = RunFolder(folder)
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    records = [{k: v for k, v in line.items() if k != "tokens_per_s"} for line in read_metrics(run.metrics)]
    kept = torch.load(run.checkpoints / "final" / "state.pt", weights_only=True, map_location="cpu")
    return {
        "records": records,
        "digest": digest(kept),
        "attempts": summary["attempts"],
        "tokens_per_s": summary["tokens_per_s"],
        "target_tokens": summary["target_tokens"],
        "peak_bytes": summary["peak_memory_bytes"],
        "gpu": gpu_name(summary["spec"]["training"]["device"]),
    }


def need_for(folder: Path) -> None:
    """Raise NotHereError if this machine lacks what a run asks for."""
    spec = read_run_file(folder / "run.yaml").spec
    need(attention=spec.model.attention, liger=spec.model.liger, backend=spec.training.fp8_backend,
         device=spec.training.device)  # fmt: skip


# --- run folders -----------------------------------------------------------------------------------------------------


def write_run(
    setting: Setting, name: str, *, model: str | None = None, regime: str = "bf16-bf16", **training: Any
) -> Path:
    """A run folder, new, of a study's run of M+Adam with other sizes, data and amounts.

    training: fields of the section `training` that differ from the setting's.
    """
    data, size = _data(setting), setting.sizes[model or setting.trained]
    request = run_request(setting.config, RunKey(next(iter(setting.config.models)), 1, regime, "m-plus-adam", 0))
    fields = {
        "global_batch_size": setting.batch,
        "micro_batch_size": setting.micro_batch,
        "device": setting.device,
        "compile": setting.compile,
        "log_every": 1,
        "checkpoint_every": setting.steps // 2,
        "probe_every": None,
        "threads": 1,
        **training,
    }
    if setting.device == "cpu" and fields.get("fp8_backend") == "transformer_engine":
        need(device="cpu", backend="transformer_engine")  # such a run cannot even be written
    steps = fields.pop("steps", setting.steps)
    request["model"] = {**vars(size), "steps_1x": steps}
    request["training"] |= fields
    request["data"] = _data_fields(setting) | {"epochs": 10**6}
    request["evaluation"] |= {"every": None, "batch_size": fields["micro_batch_size"]}
    manifest = data.manifest | {"vocab_size": max(setting.vocabulary, data.vocab_size)}
    run = resolve(request, manifest=manifest, selected=dict(setting.values), data=str(data.folder.resolve()),
                  auto=auto_here(request))  # fmt: skip
    folder = setting.folder / "runs" / name.replace(" ", "-").replace(",", "")
    write_run_file(folder / "run.yaml", run)
    return folder


def forget(*folders: Path) -> None:
    """Delete run folders: checkpoints of a large model fill a disk."""
    for folder in folders:
        shutil.rmtree(folder)


def _data_fields(setting: Setting) -> dict[str, Any]:
    return {"sequences": "pack", "sequence_length": setting.sequence_length,
            "validation_tokens": 8 * setting.sequence_length}  # fmt: skip


def _data(setting: Setting) -> TokenData:
    """Token data of numbers that count upwards, each document with a stride of its own; made once."""
    folder = setting.folder / "data"
    if not folder.exists():
        source = setting.folder / "text"
        (source / "en").mkdir(parents=True)
        for split, count, of in (("train", 2000, "01024"), ("validation", 200, "00008")):
            lines = [json.dumps({"text": text, "url": "", "timestamp": ""}) for text in _documents(split, count)]
            with gzip.open(source / "en" / f"c4-{split}.00000-of-{of}.json.gz", "wt", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
        data = DataConfig(source="c4_folder", path=str(source), **_data_fields(setting))
        prepare(data, TokenizerConfig(source="bpe", vocab_size=300), folder, log=lambda line: None)
    return TokenData.open(folder)


def _documents(seed: str, count: int) -> Iterator[str]:
    draw = random.Random(seed)
    for _ in range(count):
        start, stride = draw.randrange(1000), draw.randrange(1, 8)
        yield " ".join(str(start + stride * n) for n in range(draw.randint(8, 40)))
