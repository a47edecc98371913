"""The container that jobs run in: whether its image is there, and which folders they need in it.

Snakemake looks at an image when the first job runs, and binds the working directory alone. Here a missing image is an
error while the workflow is parsed, and what the study names outside the working directory (data, tokenizer, a `results`
that is a link to elsewhere) is bound by itself, through APPTAINER_BIND: a path may hold spaces there.
"""

from collections.abc import Iterable
from pathlib import Path

from mpadam.presence import is_there
from mpadam.study.config import StudyConfig

#: A reference to a registry; anything else is a file or folder on disk.
REMOTE = ("docker://", "oras://", "library://", "shub://", "http://", "https://")
#: Separators of APPTAINER_BIND, and what Snakemake's own command line does not quote.
FORBIDDEN_IN_BIND = ",:"
FORBIDDEN_IN_IMAGE = " \t'\"$`;&|<>()"


def checked_image(config: StudyConfig) -> str | None:
    """The image that jobs run in, None for none.

    Raises ValueError if it is a file that is not there.
    """
    image = config.container.image
    if image is None or image.startswith(REMOTE):
        return image
    if found := sorted(set(image) & set(FORBIDDEN_IN_IMAGE)):
        raise ValueError(
            f"container.image: {image!r} holds {found[0]!r}, which Snakemake does not quote; link the image to a path "
            "without it, e.g.  container: {image: containers/mpadam-h100.sif}"
        )
    if not is_there(Path(image)):
        raise ValueError(
            f"container.image: there is no {image}; build it (make image-h100, make image-cpu), or write  "
            "container: {image: null}  to run jobs in the environment that runs Snakemake"
        )
    return image


def bind_paths(config: StudyConfig, *, results: Path = Path("results")) -> list[str]:
    """Folders outside the working directory that jobs in a container need, each once, outermost first.

    Raises ValueError for one that is not there, and for a name that APPTAINER_BIND cannot hold.
    """
    folders = ("path", "path_train", "path_validation", "downloads")
    named = [(f"data.{key}", getattr(config.data, key)) for key in folders]
    named += [("tokenizer.path", config.tokenizer.path)]
    named += [("container.binds", path) for path in config.container.binds]
    wanted = [(key, Path(path)) for key, path in named if path is not None]
    study = results / config.study
    linked = (results, study, study / "data", study / "runs", study / "tuning")
    wanted += [(str(folder), folder) for folder in linked if folder.is_symlink()]
    here, outside = Path.cwd().resolve(), []
    for key, path in wanted:
        for folder in (path.absolute(), path.resolve()):
            if key == "container.binds" and not is_there(folder):
                raise ValueError(f"{key}: there is no {folder}; make it, or take it out of the list")
            if is_there(folder) and not folder.is_relative_to(here) and not folder.is_relative_to(Path.cwd()):
                outside.append((key, folder))
    for key, folder in outside:
        if set(str(folder)) & set(FORBIDDEN_IN_BIND):
            raise ValueError(
                f"{key}: {folder} holds a comma or colon, which no bind of Apptainer can: use a link to it"
            )
    return [str(folder) for folder in _outermost(folder for _, folder in outside)]


def _outermost(folders: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for folder in sorted(set(folders)):
        if not any(folder.is_relative_to(parent) for parent in kept):
            kept.append(folder)
    return kept


def bind_variable(paths: Iterable[str], before: str = "") -> str:
    """APPTAINER_BIND with these folders added to what it held; a job inherits it, and adds them again."""
    return ",".join(dict.fromkeys([*filter(None, before.split(",")), *paths]))
