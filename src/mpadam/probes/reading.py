"""The records that an `UpdateProbe` wrote, summed, and what they say in one paragraph.

Nothing is claimed that is not among the records: what a format or a write-back keeps is one step from the weight as it
was, counted on the same samples.
"""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mpadam.numerics.formats import CARDS
from mpadam.presence import is_there
from mpadam.stored import stored

LABELS = {
    "stored": "as stored",
    "fp32": "fp32",
    "bf16": "bf16",
    "fp8_e5m2": "FP8 e5m2",
    "fp8_e4m3": "FP8 e4m3",
    "nvfp4": "NVFP4",
}
_FIELDS = {
    *("step", "optimizer", "time_share", "left_out", "intended", "lost", "layers", "magnitude", "spacing", "trials"),
    "moments",
}
_REMEDY = "give the file that `out` of the UpdateProbe names"
_KAHAN_BITS = 16  # of a carry in bf16


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file in the order of steps; after a resume a step replaces all from it on. A line that a killed
    training has left unfinished is left out with a warning. ValueError for a file that holds none."""
    records: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            record = json.loads(line)
            if lacking := _FIELDS - record.keys():
                raise KeyError(min(lacking))
            records = [*(earlier for earlier in records if earlier["step"] < record["step"]), record]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not (line.startswith('{"step": ') and isinstance(error, json.JSONDecodeError)):
                why = f"not a record of mpadam.UpdateProbe ({error!r}); {_REMEDY}"
                raise ValueError(f"{path}, line {number}: {why}") from error
            warnings.warn(f"{path}, line {number}: unfinished, so it is left out")
    if not records:
        raise ValueError(f"{path} has no record: train for at least `every` steps of the UpdateProbe")
    return records


def _lines(path: Path) -> list[str]:
    if not is_there(path):
        raise ValueError(f"{path}: no such file; {_REMEDY}")
    with stored(path, remedy=_REMEDY):
        return path.read_text(encoding="utf-8").splitlines()


def summed(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers of nested records, added by key; of lists those of one place, of anything else the last."""
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = _sum(total.get(key), value)
    return total


def _sum(total: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return summed([total or {}, value])
    if isinstance(value, list):
        return value if total is None else [_sum(a, b) for a, b in zip(total, value, strict=True)]
    return total + value if isinstance(value, (int, float)) and total is not None else value


def by_magnitude(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[Any, float]]:
    """ "intended", and each view -> binade of |w| ("zero", or an exponent) -> steps, lost steps of that view."""
    found: dict[str, Counter] = {}
    for record in records:
        each = record["magnitude"]
        for view, counts in {"intended": each["intended"], **each["lost"]}.items():
            found.setdefault(view, Counter()).update(dict(zip(each["bins"], counts, strict=True)))
    return {view: dict(counts) for view, counts in found.items()}


def share(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def percent(value: float | None) -> str:
    """Without decimals where they say nothing, but no rounded 0% or 100%."""
    if value is None:
        return "none"
    if 0 < value < 0.005:
        return f"{value:.2%}" if value >= 0.0001 else "less than 0.01%"
    if 0.995 <= value < 1:
        return f"{value:.2%}" if value < 0.9999 else "more than 99.99%"
    return f"{value:.0%}"


def paragraph(records: list[dict[str, Any]]) -> str:
    """What the records say: what is lost, in which layers, and what each remedy was measured to keep."""
    total = summed({key: r[key] for key in ("intended", "lost", "trials", "moments")} for r in records)
    kinds = sorted({layer["stored"] for r in records for layer in r["layers"].values()})
    first, last = records[0], records[-1]
    steps = f"steps {first['step']} to {last['step']}, {len(records)} of them measured"
    if len(records) == 1:
        steps = f"step {last['step']}"
    lost = {view: share(n, total["intended"]) for view, n in total["lost"].items()}
    lead = f"{last['optimizer']}, weights stored as {', '.join(kinds)}; {steps}."
    if not total["intended"]:
        return f"{lead} No update of float32 would change a weight: gradients are zero, or not finite."
    text = [
        lead,
        f"{percent(lost['stored'])} of the updates that float32 can hold left the stored weight unchanged"
        f" ({percent(share(last['lost']['stored'], last['intended']))} at step {last['step']}).",
    ]
    text += _worst(records) if lost["stored"] else []
    keepers = {"kahan": "the carry", "eco": "the first moment"}
    text += [
        f"Where the write-back is {name}, {keeper} keeps what was rounded, so that these updates are delayed, not lost."
        for name, keeper in keepers.items()
        if any(f" {name}" in kind for kind in kinds)
    ]
    others = ", ".join(f"{percent(lost[view])} in {LABELS[view]}" for view in lost if view != "stored")
    text.append(f"Of the same updates, stored to nearest, {others} would be lost.")
    text += _remedies(total["trials"], _format_of(kinds), needed=bool(lost["stored"]))
    text += [
        f"In bf16, {percent(share(m['stale'], m['due']))} of the due updates of {name} would not change it."
        for name, m in total["moments"].items()
        if m["due"]
    ]
    text.append(f"The probe took {percent(last['time_share'])} of the time.")
    if last["left_out"]:
        text.append(f"It left out {last['left_out']} measurements, so as not to take more than 1%.")
    return " ".join(text)


def _worst(records: list[dict[str, Any]]) -> list[str]:
    layers = summed(r["layers"] for r in records)
    name, each = max(layers.items(), key=lambda item: item[1]["lost"]["stored"])
    own = percent(share(each["lost"]["stored"], each["intended"]))
    return [f"The layer with the most lost updates is {name}, which loses {own} of its own."]


def _format_of(stored: list[str]) -> str:
    """The format in which remedies are told: the narrowest of those in use that was tried, else bf16."""
    used = [name for name in CARDS if any(kept.split()[0] == name for kept in stored) and name in LABELS]
    return used[-1] if used and used[-1] != "fp32" else "bf16"


def _remedies(trials: Mapping[str, Mapping[str, float]], fmt: str, *, needed: bool) -> list[str]:
    bits = CARDS[fmt].bytes_per_weight * 8

    def arrives(name: str) -> str:
        return f"{share(trials[name]['arrived'], trials[name]['size']) or 0:.0%}"

    def kept(name: str) -> str:
        return percent(1 - trials[name]["lost"] / trials[name]["intended"]) if trials[name]["intended"] else "none"

    lead = f"What would help in {LABELS[fmt]}" if needed else f"Nothing has to be mended. If weights were {LABELS[fmt]}"
    return [
        f"{lead}, measured on the same steps: rounding to nearest passes on {arrives(f'{fmt}/nearest')} of their total "
        f"size, {bits:.3g} bits per weight. float32 masters change with {kept('fp32/nearest')} of the updates and pass "
        f"on {arrives('fp32/nearest')}, for 32 bits more. Stochastic rounding moves {kept(f'{fmt}/stochastic')} of the "
        f"weights at a step and passes on {arrives(f'{fmt}/stochastic')}, for no memory but with noise. Kahan "
        f"summation keeps {kept(f'{fmt}/kahan')} in weight or carry and passes on {arrives(f'{fmt}/kahan')}, for "
        f"{_KAHAN_BITS} bits more. The first step of M+Adam at its default rates, from these weights and gradients, "
        f"changes {kept(f'{fmt}/m-plus-adam')} of the weights to nearest: that is the size of its steps, and not yet "
        "a lower loss."
    ]
