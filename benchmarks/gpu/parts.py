"""Parts of a check: their cases run in processes of their own, so that none of them ends another.

A case that cannot be tried on this machine says why; one that fails is a fault of that case alone.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mpadam.llama import LlamaSize
from mpadam.model.capabilities import require
from mpadam.study.config import StudyConfig

SECONDS = 300.0
"""A process that takes longer is ended."""
ENDING_SECONDS = 10.0

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["gpu.preloaded"])


class NotHereError(Exception):
    """This machine lacks what a case needs."""


class FailedError(Exception):
    """A case raised an error in its process, or did not end."""


class KilledError(FailedError):
    """The process of a case ended without an answer."""


@dataclass(frozen=True)
class Setting:
    """How much is checked, and where.

    config: the study whose regimes and protocol are used. folder: for data and runs.
    sizes: of products, plan and training; trained: the one that is trained.
    batch, micro_batch: sequences. positions: rows of a product. values: of M+Adam.
    """

    device: str
    config: StudyConfig
    folder: Path
    sizes: Mapping[str, LlamaSize]
    trained: str
    vocabulary: int
    sequence_length: int
    steps: int
    batch: int
    micro_batch: int
    positions: int
    repeats: int
    masters: Sequence[str]
    compile: bool
    values: Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """What was found of one thing. fault: what is wrong with it. absent: why it was not tried here."""

    case: str
    values: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    absent: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data; JSON has neither NaN nor infinity, so such a number is its name."""
        values = {key: value if _has_json(value) else str(value) for key, value in self.values.items()}
        return {**vars(self), "values": values}


@dataclass(frozen=True)
class Case:
    """rows: tries it, in processes of its own, and says what was found."""

    name: str
    rows: Callable[[], list[Row]]


def _has_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def tried(case: Case) -> list[Row]:
    """The rows of a case, whatever it does."""
    try:
        return case.rows()
    except NotHereError as why:
        return [Row(case.name, absent=str(why))]
    except Exception as error:
        return [Row(case.name, fault=_told(error))]


def need(**asked: Any) -> None:
    """Raise NotHereError, with the reason, if this machine lacks what `require` is asked for."""
    try:
        require(**asked)
    except ValueError as error:
        raise NotHereError(str(error).removeprefix("this machine cannot run what run.yaml asks for: ")) from None


def apart(work: Callable[..., Any], *args: Any, limit: float = SECONDS) -> Any:
    """What `work` returns in a process of its own.

    Raises NotHereError as `work` does, KilledError if the process dies, FailedError for every other error.
    """
    _start_server()
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_answer, args=(sender, work, args))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            process.kill()
            raise FailedError(f"was ended after {limit:.0f} s")
        kind, value = receiver.recv()
    except EOFError:
        process.join(ENDING_SECONDS)
        raise KilledError(f"the process ended with code {process.exitcode}") from None
    finally:
        process.join(ENDING_SECONDS)
        process.kill()
        process.join()
        receiver.close()
    if kind == "absent":
        raise NotHereError(value)
    if kind == "failed":
        raise FailedError(value)
    return value


def _start_server() -> None:
    """Start the server that processes are forked from, once. Python 3.11 does not hand `sys.path` on to it."""
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, folders))):
        forkserver.ensure_running()


def _answer(sender: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = ("found", work(*args))
    except NotHereError as why:
        answer = ("absent", str(why))
    except BaseException as error:  # told to the parent, which goes on
        traceback.print_exc()
        answer = ("failed", _told(error))
    sender.send(answer)
    sender.close()


def _told(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return text[:300] if isinstance(error, FailedError) else f"{type(error).__name__}: {text}"[:300]


# --- what is shown ---------------------------------------------------------------------------------------------------


def page(about: Mapping[str, Any], parts: Mapping[str, Sequence[Row]]) -> str:
    """All that was found, as Markdown."""
    faults = [f"- {title}: {row.case}: {row.fault}" for title, rows in parts.items() for row in rows if row.fault]
    lines = ["# GPU check", "", ", ".join(f"{key} {value}" for key, value in about.items()) + ".", ""]
    lines += ["Faults:", "", *faults] if faults else ["No faults."]
    for title, rows in parts.items():
        lines += ["", f"## {title}", "", *_table([row for row in rows if not row.absent])]
        lines += [f"- not here: {'; '.join(cases)} ({why})" for why, cases in _absent(rows).items()]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    columns = list(dict.fromkeys(key for row in rows for key in row.values))
    lines = [("", *columns, "verdict"), ("---",) * (len(columns) + 2)]
    lines += [(row.case, *(_cell(row.values.get(key)) for key in columns), row.fault or "good") for row in rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 and math.isfinite(value) else f"{value:.4g}"


def _absent(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Why -> the cases that were not tried for that reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.absent:
            found.setdefault(row.absent, []).append(row.case)
    return found
