"""The runs and trials of a study as one file, `runs.tar.xz`, in place of the folders runs/ and tuning/.

The same files give the same bytes. `SHA256SUMS` in it, in the form of `sha256sum`, tells whether a file is missing or
changed. `tar -xf` unpacks it too.

`keep` writes which files of a study let somebody else check its results: what runs and trials were, and what became of
them, in an archive. Tables and figures are kept as they are, figures as SVG alone. Weights, token files, pages and the
workflow's own logs stay behind, and so does the long table of probes of updates: `mpadam probes` makes it of the runs'
own lines, and `mpadam site` the pages, with links to what is there.
"""

import atexit
import hashlib
import io
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

from mpadam.presence import is_there
from mpadam.stored import checksums
from mpadam.study.paths import PROBES, StudyPaths

ARCHIVE = "runs.tar.xz"
SUMS = "SHA256SUMS"
PARTS = ("runs", "tuning")


def pack(files: Iterable[Path], root: Path, archive: Path) -> None:
    """Write files below `root` to an archive: sorted by name, without dates, owners and permissions."""
    named = sorted((path.relative_to(root).as_posix(), path) for path in files)
    sums = checksums(named).encode()
    with tarfile.open(archive, "w:xz") as tar:
        _add(tar, SUMS, len(sums), io.BytesIO(sums))
        for name, path in named:
            with path.open("rb") as file:
                _add(tar, name, path.stat().st_size, file)


def _add(tar: tarfile.TarFile, name: str, size: int, content: BinaryIO) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    tar.addfile(member, content)


def unpack(archive: Path, folder: Path) -> None:
    """Write what is in an archive to a folder.

    Raises ValueError if the archive cannot be read to its end, or its files are not those that its checksums list.
    """
    try:
        with tarfile.open(archive, "r:xz") as tar:
            found = {member.name: _extract(tar, member, folder.resolve()) for member in tar}
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise _damaged(archive, str(error)) from None
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines() if found.pop(SUMS, None) else []
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if not listed:
        raise _damaged(archive, f"{SUMS} is missing from it")
    for name in sorted(listed.keys() | found.keys()):
        if listed.get(name) != found.get(name):
            fault = "is missing from it" if name not in found else f"is not the file that {SUMS} lists"
            raise _damaged(archive, f"{name} {fault}")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> str:
    """Write a member; returns its SHA-256."""
    target = (folder / member.name).resolve()
    file = tar.extractfile(member) if member.isfile() else None
    if file is None or not target.is_relative_to(folder):
        raise tarfile.ReadError(f"{member.name} is not a plain file below the study's folder")
    content = file.read()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _damaged(archive: Path, fault: str) -> ValueError:
    return ValueError(
        f"{archive}: {fault}; get the file again (git checkout, or a new copy), or make it again with  mpadam keep"
    )


def open_study(paths: StudyPaths) -> StudyPaths:
    """The same paths. Where a study has an archive and neither runs/ nor tuning/, its runs are read from a temporary
    folder with what is in the archive, which goes when the process ends."""
    archive = paths.root / ARCHIVE
    if any(is_there(paths.root / part) for part in PARTS) or not is_there(archive):
        return paths
    return replace(paths, unpacked=_unpacked(archive, archive.stat().st_mtime_ns))


@cache
def _unpacked(archive: Path, date: int) -> Path:
    """date: of the archive, so that a later one at the same place is unpacked again."""
    folder = Path(tempfile.mkdtemp(prefix="mpadam-study-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unpack(archive, folder)
    return folder


# --- what is kept of a study ------------------------------------------------------------------------------------------


_RUN = ("run.yaml", "summary.json", "metrics.jsonl", "environment.json")
_VIEWS = ("", "paper/")
#: packed
_RECORDS = (
    "tuning/*/*/*/selected.yaml",
    *(f"runs/*/*/*/*/*/{name}" for name in (*_RUN, "train.log", "loss.svg", "probes.jsonl")),
    *(f"tuning/*/*/*/trial*/{name}" for name in _RUN),
)
#: copied, from below the study's folder
_PATTERNS = (
    *("study.yaml", "data/manifest.json", "data/tokenizer/*"),
    "paper/diagnostics/**/*",
    *(f"{view}tables/*" for view in _VIEWS),
    *(f"{view}figures/*.{suffix}" for view in _VIEWS for suffix in ("svg", "json", "csv")),
    *(f"{view}claims.json" for view in _VIEWS),
)


def keep(study: Path, out: Path) -> list[Path]:
    """Write those files of the study in that folder to a new folder; returns what was written.

    Runs and trials without a summary are left out: a training may be writing there, and its checkpoints are not kept.
    Raises ValueError if `study` is no study's folder with a result, or `out` is there already or inside it.
    """
    records = open_study(StudyPaths(study.name, study.parent)).records
    if not is_there(study / "data" / "manifest.json") or not any(records.glob("runs/*/*/*/*/*/summary.json")):
        raise ValueError(
            f"{study}: no folder of a study with results, which has data/manifest.json and runs/; see results/README.md"
        )
    if out.resolve().is_relative_to(study.resolve()):
        raise ValueError(f"{out}: lies inside {study}; name a folder outside")
    if is_there(out) and any(out.iterdir()):
        raise ValueError(f"{out}: is there already, and is not overwritten; delete it, or name another")
    copies = [_copy(path, out / path.relative_to(study)) for path in _files(study, _PATTERNS)]
    ended = (p for p in _files(records, _RECORDS) if p.name == "selected.yaml" or is_there(p.parent / "summary.json"))
    pack(ended, records, out / ARCHIVE)
    return [*copies, out / ARCHIVE]


def _files(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for _ in os.walk(folder, onerror=_raise):  # a pattern passes over folders that may not be read
        pass
    found = (path for pattern in patterns for path in sorted(folder.glob(pattern)) if not path.is_dir())
    return (path for path in found if path.name != f"{PROBES}.csv" and not path.name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def _copy(source: Path, copy: Path) -> Path:
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    return copy
