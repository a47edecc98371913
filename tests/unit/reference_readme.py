"""The launch commands of the reference's README, and ways to change one word of them."""

import shlex
from pathlib import Path

from mpadam.reference.command import read_command
from mpadam.reference.flags import FLAGS
from mpadam.reference.study import translate

COMMANDS = Path(__file__).parent / "reference_commands"
BF16, FP8_BF16, FP8_FP8 = (
    (COMMANDS / f"{name}.sh").read_text(encoding="utf-8") for name in ("bf16", "fp8_bf16", "fp8_fp8")
)


def content_of(text: str) -> dict:
    return translate(read_command(text)).content


def without(text: str, *flags: str) -> str:
    """The command without these flags and their values."""
    words = words_of(text)
    for flag in flags:
        at = words.index(f"--{flag}")
        del words[at : at + (1 if FLAGS[flag].kind == "switch" else 2)]
    return shlex.join(words)


def plus(text: str, words: str) -> str:
    return f"{text.rstrip()} {words}"


def with_value(text: str, flag: str, value: object) -> str:
    """The command with another value for a flag that it has."""
    words = words_of(text)
    words[words.index(f"--{flag}") + 1] = str(value)
    return shlex.join(words)


def words_of(text: str) -> list[str]:
    return shlex.split(text.partition("\n")[2].replace("\\\n", " ") if text.startswith("#") else text)


def with_steps(text: str, steps: int) -> str:
    return with_value(with_value(text, "num_training_steps", steps), "m_adam_total_steps_e", steps)
