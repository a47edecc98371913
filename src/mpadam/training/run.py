"""Trains one run folder: what `mpadam train --run-dir D` does.

A finished run is answered from its kept result, without importing torch. Otherwise the folder is locked, claimed for
this hash, trained from its newest checkpoint, and its records are written, `summary.json` last.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mpadam.atomic import write_json, write_text
from mpadam.study.spec import RunFile, read_run_file
from mpadam.training.folder import RunFolder, claim, raise_known_failure, restore_summary
from mpadam.training.lock import RunLock
from mpadam.training.machine import configure, quick_imports
from mpadam.training.stopping import EXIT_STOPPED, Stopper

if TYPE_CHECKING:
    from mpadam.training.loop import Ended
    from mpadam.training.session import Session

log = logging.getLogger(__name__)

EXIT_DONE = 0


def train_folder(path: Path, *, stop: Stopper, replace: bool = False) -> int:
    """Train the run of a folder to its end, or as far as `stop` lets it; returns the exit code, 0 or 75.

    replace: discard what a run with another hash left in the folder.
    Raises ValueError for bad input and for failures that a retry cannot mend, RefusedError if the folder is another
    run's or another process is training it.
    """
    folder = RunFolder(path)
    run = read_run_file(folder.run_file)
    with RunLock(folder.lock), _logging(folder.log):
        claim(folder, run, replace=replace)
        if restore_summary(folder, run):
            log.info("%s is finished (run %s): nothing to train", path, run.spec.hash)
            return EXIT_DONE
        raise_known_failure(folder, run)
        return _train(run, folder, stop)


def _train(run: RunFile, folder: RunFolder, stop: Stopper) -> int:
    with quick_imports():
        from mpadam.training.loop import train
        from mpadam.training.provenance import environment
        from mpadam.training.regime import weights_csv
        from mpadam.training.session import open_data, open_session

    log.info("run %s in %s", run.spec.hash, folder.path)
    configure(run.spec)
    data = open_data(run, folder)  # data and machine can be mended while run.yaml stays: no lasting failure so far
    try:
        session = open_session(run, folder, data)
        session.progress.attempts += 1
        write_json(folder.environment, environment(run.spec.training.device))
        write_text(folder.weights, weights_csv(session.model, session.optimizer))
        ended = train(session, stop)
    except ValueError as error:
        write_json(folder.failure, {"hash": run.spec.hash, "error": str(error), "trace": traceback.format_exc()})
        raise
    if ended.status == "stopped":
        log.info("stopped after step %d (%s): the same command goes on from there", ended.step, ended.reason)
        return EXIT_STOPPED
    _finish(session, ended)
    return EXIT_DONE


def _finish(session: Session, ended: Ended) -> None:
    """Keep the final weights, write the records, the summary last, then delete the other checkpoints."""
    from mpadam.training import checkpoint as checkpoints
    from mpadam.training.metrics import read_metrics
    from mpadam.training.plot import loss_svg
    from mpadam.training.regime import model_state
    from mpadam.training.summary import summarise

    folder, labels, root = session.folder, session.run.labels, session.folder.checkpoints
    weights = model_state(session.model)
    checkpoints.save(root, run_hash=session.spec.hash, progress=session.progress, state=weights, name=checkpoints.FINAL)
    train = [(record["step"], record["loss"]) for record in read_metrics(folder.metrics)]
    validation = [(entry["step"], entry["loss"]) for entry in session.progress.validation]
    title = f"{labels.model} {labels.budget}x {labels.regime} {labels.optimizer} seed {labels.seed}"
    write_text(folder.plot, loss_svg(train, validation, title=title))
    summary = summarise(session, ended)
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
