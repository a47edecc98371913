"""Where the records of an `UpdateProbe` go: JSON lines, W&B, TensorBoard, a function."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from os import SEEK_END, PathLike
from pathlib import Path
from typing import Any

Outlet = Callable[[dict[str, Any]], None]


def outlet(out: Any) -> Outlet:
    """The function that sends a record to `out`; ValueError for what nothing can be sent to."""
    if isinstance(out, (str, PathLike)):
        return _file(Path(out))
    if isinstance(out, (list, tuple)):
        return partial(_all, [outlet(each) for each in out])
    if hasattr(out, "add_scalar"):
        return partial(_tensorboard, out)
    if hasattr(out, "log"):  # without a step of its own: it joins what the training logs next
        return lambda record: out.log(scalars(record), commit=False)
    if callable(out):
        return partial(out)
    raise ValueError(
        f"out = {out!r}: give a path, a W&B run, a TensorBoard SummaryWriter, a function, or a list of these"
    )


def _all(outlets: list[Outlet], record: dict[str, Any]) -> None:
    for send in outlets:
        send(record)


def _tensorboard(writer: Any, record: dict[str, Any]) -> None:
    for name, value in scalars(record).items():
        writer.add_scalar(name, value, record["step"])


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    intended = record["intended"]
    found = {f"lost/{view}": lost / intended for view, lost in record["lost"].items() if intended}
    layers = {
        f"lost by layer/{name}": each["lost"]["stored"] / each["intended"]
        for name, each in record["layers"].items()
        if each["intended"]
    }
    moments = {f"held still in bf16/{k}": m["stale"] / m["due"] for k, m in record["moments"].items() if m["due"]}
    return {f"update_probe/{key}": value for key, value in (found | layers | moments).items()}


def _file(path: Path) -> Outlet:
    """A line that a killed training has left unfinished is ended first, so that none is joined to it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            end = file.seek(0, SEEK_END)
            file.seek(max(end - 1, 0))
            if file.read() not in (b"", b"\n"):
                file.write(b"\n")
    except OSError as error:
        raise ValueError(f"out = {str(path)!r}: cannot be written ({error.strerror}); give another path") from error

    def append(record: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    return append
