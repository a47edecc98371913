"""Whether Snakemake takes everything that its command line and its profiles say about the study.

Of an option or a key of a profile that is given twice it keeps the last. And `configfile:` of a profile is a default
for `--configfile`, which replaces it: with `--profile profiles/smoke --configfile my.yaml` the smoke study is gone, and
what is planned is my.yaml on the paper's study. All of that is refused.
"""

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpadam.study.load import ConfigError, read_yaml

_CONFIGFILE = ("--configfile", "--configfiles")
_CONFIG = ("--config", "-C")


def check_configfiles(command_line: Sequence[str], given: Sequence[Path]) -> None:
    """Raise ConfigError where Snakemake drops a part of the configuration.

    command_line: the arguments of Snakemake, which alone say which profile it was called with. given: the files of
    --configfile, which must start with those that a profile names.
    """
    arguments = _parsed(command_line)
    for option, groups in (("--configfile", arguments.configfile), ("--config", arguments.config)):
        if groups and len(groups) > 1:
            joined = shlex.join(word for group in groups for word in group)
            raise ConfigError(
                f"{option} is given {len(groups)} times, of which Snakemake keeps the last; write  {option} {joined}"
            )
    naming = [(profile, named) for profile in _profiles(arguments) if (named := _configfiles(profile))]
    if arguments.configfile and naming:
        _check(*naming[-1], given)


def _parsed(command_line: Sequence[str]) -> Namespace:
    """Snakemake's options, where --configfile and --config have a list for each time that they are given."""
    from snakemake.cli import get_argument_parser

    parser = get_argument_parser()
    repeated = parser.add_argument_group("taken each time", conflict_handler="resolve")
    repeated.add_argument(*_CONFIGFILE, nargs="+", action="append")
    repeated.add_argument(*_CONFIG, nargs="*", action="append")
    arguments, _ = parser.parse_known_args(list(command_line))
    return arguments


def _profiles(arguments: Namespace) -> Iterator[Path]:
    """The files of the profiles in use. The workflow's own, profiles/default unless another is named, comes last."""
    from snakemake.cli import get_profile_dir

    own = arguments.workflow_profile or "default"
    own_places = [str(place) for place in (Path(own), Path("profiles", own)) if place.exists()]
    for places in (*((name, f"profiles/{name}") for name in arguments.profile or []), own_places[:1]):
        if found := next(filter(None, map(get_profile_dir, places)), None):
            yield found[1]


def _configfiles(profile: Path) -> list[str]:
    """What a profile has for --configfile. Raises ConfigError where it has a key twice."""
    from snakemake.profiles import ProfileConfigFileParser

    keys = [key for key in read_yaml(profile) if f"--{str(key).removeprefix('--')}" in _CONFIGFILE]
    if len(keys) > 1:
        raise ConfigError(f"{profile}: {' and '.join(keys)} are one key; keep one, with a list:  {keys[0]}: [A, B]")
    if not keys:
        return []
    with profile.open(encoding="utf-8") as file:
        value = ProfileConfigFileParser().parse(file).get(keys[0], [])
    return [value] if isinstance(value, str) else value


def _check(profile: Path, named: Sequence[str], given: Sequence[Path]) -> None:
    if [path.resolve() for path in given[: len(named)]] == [Path(name).resolve() for name in named]:
        return
    known = {Path(name).resolve() for name in named}
    others = [_as_typed(path) for path in given if path.resolve() not in known]
    raise ConfigError(
        f"--configfile replaces {' '.join(named)}, the study that {profile} names; to change that study, write  "
        f"--configfile {' '.join([*named, *others])}  and for a study of its own use another profile, e.g.  "
        f"--profile profiles/local --configfile {' '.join(others)}"
    )


def _as_typed(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
