"""Trains one run folder: what `mpadam train --run-dir D` does.

A finished run is answered from its kept result, without importing torch. Otherwise the folder is locked, claimed for
this hash, trained from its newest checkpoint, and its records are written, `summary.json` last. With several ranks the
leading one does all of that, and all of them train.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpadam.atomic import write_json, write_text
from mpadam.exits import EXIT_DONE, EXIT_STOPPED
from mpadam.study.run_folder import RunFolder, result_sha256
from mpadam.study.spec import RunFile, read_run_file
from mpadam.training.folder import claim, raise_known_failure, restore_summary, sweep
from mpadam.training.lock import RunLock
from mpadam.training.machine import configure, quick_imports
from mpadam.training.ranks import ALONE, Ranks
from mpadam.training.stopping import Stopper

if TYPE_CHECKING:
    from mpadam.training.loop import Ended
    from mpadam.training.session import Session

log = logging.getLogger(__name__)


def train_folder(
    path: Path, *, stop: Stopper, replace: bool = False, ranks: Ranks = ALONE, change_world_size: bool = False
) -> int:
    """Train the run of a folder to its end, or as far as `stop` lets it; returns the exit code, 0 or 75.

    replace: discard what a run with another hash left in the folder.
    ranks: this process and those that train with it, each of which calls this.
    change_world_size: go on from a checkpoint that another number of ranks has made.
    Raises ValueError for bad input and for failures that a retry cannot mend, RefusedError if the folder is another
    run's or another process is training it, OSError if the disk is full.
    """
    folder = RunFolder(path)
    run = read_run_file(folder.run_file)
    lock = RunLock(folder.lock)
    with ExitStack() as held:
        if ranks.together(lambda: _is_finished(run, folder, lock, held, replace=replace)):
            return EXIT_DONE
        with quick_imports():
            from mpadam.training.session import open_data, open_session
            from mpadam.training.tracking import check_tracking

        configure(run.spec)
        check_tracking(run)
        data = open_data(run, folder)  # data and machine can be mended while run.yaml stays: no lasting failure so far
        with _lasting_failures(run, folder, ranks, stop):
            session = open_session(run, folder, data, ranks=ranks, change_world_size=change_world_size)
            if (reason := ranks.any_reason(stop.signal)) is not None:
                return _stopped(session.progress.step, reason)
            return _train(session, stop, lock)


def _is_finished(run: RunFile, folder: RunFolder, lock: RunLock, held: ExitStack, *, replace: bool) -> bool:
    """Take the folder for this run until `held` is closed; whether there is nothing left to train."""
    held.enter_context(lock)
    held.enter_context(_logging(folder.log))
    claim(folder, run, replace=replace)
    finished = restore_summary(folder, run)
    sweep(folder, finished=finished)
    if finished:
        log.info("%s is finished (run %s): nothing to train", folder.path, run.spec.hash)
        return True
    raise_known_failure(folder, run)
    log.info("run %s in %s", run.spec.hash, folder.path)
    return False


@contextmanager
def _lasting_failures(run: RunFile, folder: RunFolder, ranks: Ranks, stop: Stopper) -> Iterator[None]:
    """A ValueError of the run itself leaves `failure.json`: repeating cannot mend it. After a signal it may."""
    try:
        yield
    except ValueError as error:
        if ranks.leads and stop.signal is None:
            write_json(folder.failure, {"hash": run.spec.hash, "error": str(error), "trace": traceback.format_exc()})
        raise


def _train(session: Session, stop: Stopper, lock: RunLock) -> int:
    from mpadam.training.loop import train
    from mpadam.training.provenance import place
    from mpadam.training.summary import reset_peak_memory

    session.progress.attempts += 1
    device = session.spec.training.device
    reset_peak_memory(device)
    places = session.ranks.gather(place(device))
    session.ranks.together(lambda: _describe(session, places))
    ended = train(session, stop, guard=lock.check)
    if ended.status == "stopped":
        return _stopped(ended.step, ended.reason)
    _note_peak(session)
    session.ranks.together(lambda: _finish(session, ended, lock))
    return EXIT_DONE


def _stopped(step: int, reason: str | None) -> int:
    log.info("stopped after step %d (%s): the same command continues from there", step, reason)
    return EXIT_STOPPED


def _describe(session: Session, places: list[dict[str, Any]]) -> None:
    """Write what this attempt runs on, and how each parameter is stored."""
    from mpadam.training.provenance import write_environment
    from mpadam.training.session import weights_csv

    device, step = session.spec.training.device, session.progress.step
    write_environment(session.folder, device=device, step=step, places=places)
    write_text(session.folder.weights, weights_csv(session.model, session.optimizer))


def _note_peak(session: Session) -> None:
    from mpadam.training.summary import peak_memory_bytes

    earlier = session.progress.peak_memory_bytes
    (session.progress.peak_memory_bytes,) = session.ranks.largest(
        peak_memory_bytes(session.spec.training.device, earlier)
    )


def _finish(session: Session, ended: Ended, lock: RunLock) -> None:
    """Keep the final weights, write the records, the summary last, then delete the other checkpoints."""
    from mpadam.training import checkpoint as checkpoints
    from mpadam.training.plot import draw
    from mpadam.training.session import model_state
    from mpadam.training.summary import summarise

    lock.check()
    folder, root = session.folder, session.folder.checkpoints
    weights, summary = model_state(session.model), summarise(session, ended)
    checkpoints.save(
        root, run_hash=session.spec.hash, progress=session.progress, state=weights, result=result_sha256(summary)
    )
    draw(folder, session.run, session.progress.validation)
    write_json(folder.result, summary)
    write_json(folder.summary, summary)
    checkpoints.retain(root, count=0)
    if ended.status == "diverged":
        log.info("diverged at step %d: %s, last finite loss %s", ended.step, ended.reason, session.progress.last_loss)
    else:
        log.info("validation loss %.4f, perplexity %.3f", summary["val_loss"], summary["val_ppl"])


@contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Messages of this package go to standard error and, with the time, to the end of `train.log`."""
    logger = logging.getLogger("mpadam")
    console, file = logging.StreamHandler(sys.stderr), logging.FileHandler(path, encoding="utf-8")
    console.setFormatter(logging.Formatter("%(message)s"))
    if sys.stderr.isatty():
        console.addFilter(lambda record: not hasattr(record, "on_terminal"))
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
    logger.setLevel(logging.INFO)
    logger.addHandler(console)
    logger.addHandler(file)
    try:
        yield
    except BaseException as error:
        file.emit(logger.makeRecord(logger.name, logging.ERROR, "", 0, f"{type(error).__name__}: {error}", (), None))
        raise
    finally:
        logger.removeHandler(console)
        logger.removeHandler(file)
        file.close()
