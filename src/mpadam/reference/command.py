"""Reads a launch command of the reference implementation: launcher, script, flags with their values.

    read_command("torchrun --standalone --nproc_per_node=2 main.py --lr 8e-5 ...")

Lines joined by backslashes, quotes and environment variables are understood as a shell does, but that `${TRAIN_DATA}`
stays as it is.
"""

import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from mpadam.reference.flags import FLAGS, LAUNCHER_FLAGS, SCRIPTS, Flag, Kind

Value = str | int | float | bool
LAUNCHERS = (("torchrun",), ("python",), ("python3",), ("python", "-m", "torch.distributed.run"))
_SETTING = re.compile(r"""(export\s+)?[A-Za-z_]\w*=("[^"]*"|'[^']*'|\S*)""")  # a line of its own
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)  # a word before the launcher


@dataclass(frozen=True)
class Command:
    """processes: GPUs on the node. script: "main.py" or "train_fp8_true_master.py". given: flag to value."""

    processes: int
    script: str
    given: Mapping[str, Value]


def read_command(text: str) -> Command:
    """Parse a launch command.

    text: the command, or a shell script that holds it and nothing else but comments and assignments.
    Raises ValueError for anything that is not understood: an unknown flag with the closest known one.
    """
    words = _words(text)
    position = next((i for i, word in enumerate(words) if PurePosixPath(word).name in SCRIPTS), None)
    if position is None:
        raise ValueError(f"no script in the command: it must call {' or '.join(SCRIPTS)}")
    script = PurePosixPath(words[position]).name
    launcher = _launcher(words[:position])
    given = _read_flags(words[position + 1 :], FLAGS)
    for name in given:
        only = FLAGS[name].script
        if only is not None and only != script:
            raise ValueError(f"--{name}: {script} does not take it, {only} does")
    return Command(launcher, script, given)


def _words(text: str) -> list[str]:
    lines = re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines()
    commands = [
        line for line in map(str.strip, lines) if line and not line.startswith("#") and not _SETTING.fullmatch(line)
    ]
    if len(commands) != 1:
        found = f"a second one begins {commands[1][:40]!r}: is a backslash missing?" if commands else "there is none"
        raise ValueError(f"expected one launch command, but {found}")
    try:
        words = shlex.split(commands[0])
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words ({error}): check its quotes") from None
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)  # of the environment, e.g. CUDA_VISIBLE_DEVICES=0,1
    return words


def _launcher(words: list[str]) -> int:
    """Processes that the words before the script start."""
    flags = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    if tuple(words[:flags]) not in LAUNCHERS:
        known = ", ".join(" ".join(launcher) for launcher in LAUNCHERS)
        raise ValueError(f"the command starts with {' '.join(words[:flags])!r}; known launchers: {known}")
    given = _read_flags([_underscored(word) for word in words[flags:]], LAUNCHER_FLAGS)
    if given.get("nnodes", 1) != 1:
        raise ValueError(f"--nnodes {given['nnodes']}: a command for one node is understood, so write  --nnodes=1")
    return int(given.get("nproc_per_node", 1))


def _underscored(word: str) -> str:
    """`--nproc-per-node=2` as `--nproc_per_node=2`: torchrun takes both."""
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if word.startswith("--") else word


def _read_flags(words: list[str], known: Mapping[str, Flag]) -> dict[str, Value]:
    given: dict[str, Value] = {}
    rest = iter(words)
    for word in rest:
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ValueError(f"unexpected word {word!r}: a flag such as --lr comes before each value")
        if name not in known:
            raise ValueError(f"--{name}: unknown flag{_closest(name, known)}")
        if name in given:
            raise ValueError(f"--{name} is given twice; keep one")
        given[name] = True if known[name].kind == "switch" else _value(known[name], text if equals else None, rest)
        if known[name].kind == "switch" and equals:
            raise ValueError(f"--{name} takes no value; drop {'=' + text!r}")
    return given


def _closest(name: str, known: Mapping[str, Flag]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean --{close[0]}?" if close else f"; known: {', '.join('--' + flag for flag in known)}"


def _value(flag: Flag, text: str | None, rest: Iterator[str]) -> Value:
    """The value of a flag: after its equals sign, or the next word."""
    word = next(rest, None) if text is None else text
    if word is None or (text is None and word.startswith("--")):
        raise ValueError(f"--{flag.name} needs a value ({flag.kind})")
    try:
        return READERS[flag.kind](word)
    except ValueError:
        raise ValueError(f"--{flag.name} {word}: expected {_EXPECTED[flag.kind]}") from None


def _read_bool(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise ValueError(word)
    return word.lower() == "true"


READERS: Mapping[Kind, Callable[[str], Value]] = {"int": int, "float": float, "text": str, "bool": _read_bool}
_EXPECTED: Mapping[Kind, str] = {"int": "a whole number", "float": "a number", "bool": "true or false"}
