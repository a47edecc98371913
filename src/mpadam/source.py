"""Where the code that runs comes from: version, hash of the files, and commit of the package's own checkout.

    origin()                {"commit": ..., "dirty": ..., "source": {"version": ..., "sha256": ...}}
    check_checkout(root)    ValueError where a checkout's workflow would run other code than the checkout's

A commit is told only of the repository whose `src/mpadam` this is: never of one that merely contains the environment,
and never of one that variables such as GIT_DIR name. Where there is none, `commit_unknown` says why.
"""

import hashlib
import os
import subprocess
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from mpadam import __version__
from mpadam.stored import checksums

PACKAGE = Path(__file__).parent
SUFFIXES = frozenset({".py", ".html", ".css", ".js", ".yaml"})
SECONDS = 30  # of one question to git: a repository may be huge, or on a slow disk
_OPTIONS = (
    *("--no-optional-locks", "--no-replace-objects", "-c", "core.fsmonitor=false"),
    *("-c", "core.trustctime=true", "-c", "core.checkStat=default"),  # an edit may keep size and date
    *("-c", "safe.directory=*"),  # another user's clone: its code runs here already
)


class _UnknownError(Exception):
    """No commit can be told; the message says why."""


def origin(package: Path = PACKAGE) -> dict[str, Any]:
    """Commit and version of the package in this folder; its repository is the folder itself or two above (`src`)."""
    source = {"version": __version__, "sha256": digest(package)}
    try:
        package = package.resolve()
        root = _root(package)
        top, _, commit = _git(root, "rev-parse", "--show-toplevel", "HEAD").rpartition("\n")
        if not Path(top).samefile(root) or not _git(root, "ls-files", "--", str(package)):
            raise _UnknownError("the package is no part of the git repository that it lies in")
        return {"commit": commit, "dirty": _is_dirty(root, package), "source": source}
    except _UnknownError as reason:
        return {"commit": None, "dirty": None, "commit_unknown": str(reason), "source": source}


def digest(package: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the package's files: equal for a checkout and a wheel made of it."""
    named = sorted((path.relative_to(package).as_posix(), path) for path in files(package))
    return hashlib.sha256(checksums(named).encode()).hexdigest()


def check_checkout(root: Path) -> None:
    """Raise ValueError where the workflow of this checkout would run the code of another place."""
    own = root / "src" / "mpadam"
    if own.is_dir() and not own.samefile(PACKAGE) and digest(own) != digest():
        raise ValueError(
            f"the workflow is that of {root}, but this environment runs the code in {PACKAGE}, which differs from "
            f"{own}: run  make env  in {root} and start {root}/.venv/bin/snakemake, without PYTHONPATH"
        )


def files(folder: Path) -> list[Path]:
    """Source files below a folder of the package: code and what it reads."""
    return [path for path in folder.rglob("*") if path.suffix in SUFFIXES]


def _root(package: Path) -> Path:
    for folder in (package, package.parent.parent):
        if (folder / ".git").exists():
            return folder
    raise _UnknownError("the package is installed, or its source is in no git repository of its own")


def _is_dirty(root: Path, package: Path) -> bool:
    """Whether a tracked file outside results/ differs from the commit, or the package has one that is not tracked."""
    every = ("--untracked-files=no", "--ignore-submodules=none")
    tracked = _git(root, "status", "--porcelain", *every, "--", ".", _NO_RESULTS)
    untracked = _git(root, "status", "--porcelain", "--untracked-files=normal", "--", str(package))
    return bool(tracked or untracked) or _has_ignored_code(root, package) or _hides_changes(root)


_NO_RESULTS = ":(exclude)results"


def _has_ignored_code(root: Path, package: Path) -> bool:
    """Whether the package has code or data that git ignores, but for what Python compiles."""
    others = map(Path, _names(_git(root, "ls-files", "-z", "--others", "--", str(package))))
    importable = {*SUFFIXES, *all_suffixes()}
    return any("__pycache__" not in p.parts and importable.intersection(p.suffixes[-1:]) for p in others)


def _hides_changes(root: Path) -> bool:
    """Whether a file that git was told not to look at is another than that of the commit, or gone: assume-unchanged, or
    skip-worktree, which a sparse checkout says of files that it leaves out."""
    listed = (entry.split(" ", 1) for entry in _names(_git(root, "ls-files", "-z", "-v", "--", ".", _NO_RESULTS)))
    flagged = {name: flag for flag, name in listed if flag.islower() or flag == "S"}
    hidden = [name for name in flagged if os.path.lexists(root / name)]
    if any(flagged[name] not in "Ss" for name in flagged.keys() - set(hidden)):
        return True
    if not hidden:
        return False
    entries = (entry.split("\t") for entry in _names(_git(root, "ls-tree", "-z", "-r", "HEAD", "--", *hidden)))
    committed = {name: about.split()[2] for about, name in entries}
    hashes = _git(root, "hash-object", "--", *hidden).splitlines()
    return any(committed.get(name) != found for name, found in zip(hidden, hashes, strict=True))


def _names(listed: str) -> list[str]:
    return [name for name in listed.split("\0") if name]


def _git(root: Path, *arguments: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *_OPTIONS, *arguments],
            env={**inherited, "LC_ALL": "C"}, capture_output=True, check=False, timeout=SECONDS,
        )  # fmt: skip
    except FileNotFoundError:
        raise _UnknownError("git is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnknownError(f"git did not answer: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise _UnknownError(f"git: {said[0]}")
    return os.fsdecode(done.stdout).strip()
