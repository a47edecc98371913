"""What training does to its run folder: claims it, clears away what an earlier attempt left, gives its result back."""

import logging
from typing import Any

from mpadam.atomic import TEMPORARY, is_temporary, remove, write_json
from mpadam.presence import entries, is_there
from mpadam.study.run_folder import RunFolder, edited_records, kept_result, read_json
from mpadam.study.spec import RunFile, RunSpec, differing_fields

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """This folder must not be touched now: another run's files, or another writer. Exit code 3."""


def claim(folder: RunFolder, run: RunFile, *, replace: bool) -> None:
    """Make the folder this run's.

    replace: whether files of a run with another hash may be discarded. The workflow says yes, since there `run.yaml`
        is what counts; by hand it is a mistake more often than not.
    Raises RefusedError, with the differing fields, if the folder holds another run's files and `replace` is false.
    """
    recorded = read_json(folder.identity)
    damaged = recorded is None and is_there(folder.identity)
    if damaged:
        log.warning("%s is damaged: the checkpoints next to it say whose files these are", folder.identity)
        found = _hash_of_checkpoints(folder)
        recorded = None if found is None else {"hash": found}
    others = recorded is not None and recorded.get("hash") != run.spec.hash
    if recorded is not None and others:
        if not replace:
            raise RefusedError(_difference(folder, recorded, run))
        discard(folder)
    if recorded is None or others or damaged:
        folder.checkpoints.mkdir(exist_ok=True)
        write_json(folder.identity, {"hash": run.spec.hash, "spec": run.spec.model_dump(mode="json")})


def _hash_of_checkpoints(folder: RunFolder) -> str | None:
    """The hash of the run that the checkpoints here are of; None where there is none, or none that says so."""
    manifests = (read_json(path / "manifest.json") for path in entries(folder.checkpoints) if path.is_dir())
    return next((manifest["hash"] for manifest in manifests if manifest and "hash" in manifest), None)


def discard(folder: RunFolder) -> None:
    """Delete everything that training made here, the identity last but for the log, which only grows."""
    for path in (
        folder.summary,
        folder.result,
        folder.plot,
        folder.environment,
        folder.failure,
        folder.metrics,
        folder.probes,
    ):
        path.unlink(missing_ok=True)
    for path in sorted(entries(folder.checkpoints), key=lambda path: path == folder.identity):
        remove(path)  # one by one: the folder may be a link to another disk


def sweep(folder: RunFolder, *, finished: bool) -> None:
    """Delete what killed writers left half done; of a finished run, checkpoints that it no longer needs too."""
    written = (folder.summary, folder.environment, folder.weights, folder.plot, folder.failure)
    for path in written:
        for temporary in folder.path.glob(f".{path.name}.*{TEMPORARY}"):
            remove(temporary)
    for path in entries(folder.checkpoints):
        if is_temporary(path) or (finished and path.name.startswith("step")):
            remove(path)


def _difference(folder: RunFolder, recorded: dict[str, Any], run: RunFile) -> str:
    try:
        fields = "; ".join(differing_fields(RunSpec.model_validate(recorded["spec"]), run.spec))
    except KeyError:
        fields = f"{folder.identity.name} is damaged and does not say in what they differ"
    except ValueError:
        fields = "they were written by another version of mpadam"
    return (
        f"{folder.path} holds checkpoints of run {recorded.get('hash')}, but run.yaml describes {run.spec.hash}: "
        f"{fields}. Restore run.yaml, use another folder, or give --replace to discard what is there"
    )


def restore_summary(folder: RunFolder, run: RunFile) -> bool:
    """Write `summary.json` again from the kept result, if the run is finished and its records are intact."""
    result = kept_result(folder, run.spec.hash)
    if result is None or edited_records(folder, result):
        return False
    write_json(folder.summary, {**result, "labels": run.labels.model_dump(mode="json")})
    return True


def raise_known_failure(folder: RunFolder, run: RunFile) -> None:
    """Raise ValueError if this very run has failed before; forget failures of other runs."""
    failure = read_json(folder.failure)
    if failure is not None and failure.get("hash") == run.spec.hash:
        raise ValueError(
            f"{failure.get('error', 'it does not say why')} (an earlier attempt ended so, and run.yaml is the same "
            f"since; after mending another cause, delete {folder.failure})"
        )
    folder.failure.unlink(missing_ok=True)
