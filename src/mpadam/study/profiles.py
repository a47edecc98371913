"""Whether the command line took away the study that a profile of Snakemake names.

`configfile:` of a profile is a default for `--configfile`, which replaces it: with `--profile profiles/smoke
--configfile my.yaml` the smoke study is gone, and what is planned is my.yaml on the paper's study. That is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpadam.study.load import ConfigError


def check_configfiles(command_line: Sequence[str], given: Sequence[Path]) -> None:
    """Raise ConfigError where `given`, the files of --configfile, do not start with those that a profile names.

    command_line: the arguments of Snakemake, which alone say which profile it was called with.
    """
    if not any(word.startswith("--configfile") for word in command_line):
        return
    from snakemake.cli import get_argument_parser

    arguments, _ = get_argument_parser().parse_known_args(list(command_line))
    profiles = [*(arguments.profile or []), *filter(None, [arguments.workflow_profile])]
    for profile in reversed(profiles):
        if named := _configfiles(profile):
            _check(profile, named, given)
            return


def _configfiles(profile: str) -> list[str]:
    """What a profile has for --configfile."""
    from snakemake.cli import get_profile_dir
    from snakemake.profiles import ProfileConfigFileParser

    candidates = (get_profile_dir(name) for name in (profile, f"profiles/{profile}"))
    found = next(filter(None, candidates), None)
    if found is None:
        return []
    with found[1].open(encoding="utf-8") as file:
        content = ProfileConfigFileParser().parse(file)
    value = content.get("configfile", content.get("configfiles", []))
    return [value] if isinstance(value, str) else value


def _check(profile: str, named: Sequence[str], given: Sequence[Path]) -> None:
    if [path.resolve() for path in given[: len(named)]] == [Path(name).resolve() for name in named]:
        return
    known = {Path(name).resolve() for name in named}
    others = [_as_typed(path) for path in given if path.resolve() not in known]
    raise ConfigError(
        f"--configfile replaces {' '.join(named)}, the study of --profile {profile}; to change that study, write  "
        f"--configfile {' '.join([*named, *others])}  and for a study of its own use another profile, e.g.  "
        f"--profile profiles/local --configfile {' '.join(others)}"
    )


def _as_typed(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
