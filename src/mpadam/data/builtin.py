"""The built-in corpus: docstrings of pinned, pure-Python packages that are dependencies anyway.

Training text from sympy and transformers, validation text from networkx: real English, offline, nothing redistributed.
The packages are read, never imported. A document is the prose of one docstring; a paragraph that mostly repeats an
earlier one is left out, validation text coming first, so that no training document repeats a validation one. Wheels of
pure Python hold the same files on every platform; the SHA-256 of the result is checked nevertheless, since golden
numbers are tied to it.

    python -c 'from mpadam.data.builtin import corpus; print(corpus()["validation"][0])'

`paragraphs` turns one docstring into its paragraphs of prose; `Novelty` refuses a paragraph when half of it occurs in
paragraphs kept earlier. Both depend on the characters alone: they use no Unicode tables and no hashing that varies
between processes or versions of Python, so that the corpus has the same bytes everywhere.

What counts as prose, in this order:
  1. fenced code, doctests, literal blocks (after `::`), directives (`.. math::`) with what is indented under them, and
     the sections References, See Also, Citation are left out; underlined headings lose heading and underline;
  2. lines are joined to paragraphs: a blank line, a change of indentation or a bullet starts a new one;
  3. markup is undone: :class:`~a.Name` is Name, ``x`` and *x* are x, [`~A.b`] is A.b, footnote marks [1]_ go;
  4. a paragraph stays if it has 6 words, 3 of 4 of its blank-separated pieces are plain words, and it ends a sentence.
"""

import ast
import gc
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from mpadam.data.text import Split, TextShard
from mpadam.study.text import DataConfig

# --- prose ------------------------------------------------------------------------------------------------------------


MINIMUM_WORDS = 6
WORD_SHARE = 0.75
SHINGLE = 5
KNOWN_SHARE = 0.5

_SKIPPED_SECTIONS = {"references", "reference", "see also", "citation", "citations", "bibliography"}
_UNDERLINE = re.compile(r"([=~^*#\-])\1{2,}")
_BULLET = re.compile(r"(?:[-*+•]|\(?[0-9]{1,2}[.)])[ ]+")
_WORD = re.compile(r"[(\"'\[]*[A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"'\]]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # from docstrings that say "\rightarrow" without r"..."
_SENTENCE_END = re.compile(r"[.!?:][)\"']?$")
_MARKUP = (
    (re.compile(r"\[[0-9A-Za-z]{1,12}\]_"), ""),
    (re.compile(r":[a-z]+(?::[a-z]+)?:`[!~.]*([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{1,2}"), r"\1"),
    (re.compile(r"\[`~?([^`]+)`\](?:\([^)]*\))?"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`~?([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"(?<![0-9A-Za-z_)*])(\*{1,2})([^* ][^*]*)\1(?![0-9A-Za-z_(*])"), r"\2"),
    (re.compile(r"</?[A-Za-z][A-Za-z0-9]*>"), ""),
    (re.compile(r"[ ]+([.,;:!?])(?=[ ]|$)"), r"\1"),
    (re.compile(r"[ ]{2,}"), " "),
)


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of prose in a docstring, one line each, in order."""
    joined = (" ".join(lines) for lines in _joined(_text_lines(docstring)))
    return [text for text in map(_plain, joined) if _is_prose(text)]


class Novelty:
    """Remembers the word shingles of kept paragraphs.

    A shingle is 5 words in a row, lower case, remembered as its CRC-32. A paragraph whose shingles are known to at
    least one half is refused, and its shingles are not remembered.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()

    def keep(self, paragraph: str) -> bool:
        """Whether the paragraph is new; if so, it is remembered."""
        words = re.findall(r"[a-z0-9]+", paragraph.lower())
        shingles = {
            zlib.crc32(" ".join(words[i : i + SHINGLE]).encode()) for i in range(max(1, len(words) - SHINGLE + 1))
        }
        if len(shingles & self._known) >= KNOWN_SHARE * len(shingles):
            return False
        self._known |= shingles
        return True


def _text_lines(docstring: str) -> Iterator[tuple[int, str]]:
    """(indentation, text) of the lines that may be prose; text is empty where a paragraph must end."""
    lines = [line.rstrip() for line in docstring.expandtabs(8).split("\n")]
    lines[0] = lines[0].lstrip()
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line), default=0)
    lines[1:] = [line[margin:] for line in lines[1:]]
    fenced = doctest = skipped_section = False
    literal: int | None = None  # what is indented deeper than this is no prose
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        doctest = bool(text) and (doctest or text.startswith(">>>"))
        if text and literal is not None and indent <= literal:
            literal = None
        if text.startswith(("```", "~~~")):
            fenced, text = not fenced, ""
        elif text and _UNDERLINE.fullmatch(following.strip()):
            skipped_section, text = text.lower().rstrip(":") in _SKIPPED_SECTIONS, ""
        elif _UNDERLINE.fullmatch(text) or fenced or doctest or skipped_section or literal is not None:
            text = ""
        elif text.startswith(".. "):
            literal, text = indent, ""
        elif text.endswith("::"):
            literal, text = indent, text[:-1]
        yield indent, text


def _joined(lines: Iterator[tuple[int, str]]) -> Iterator[list[str]]:
    """Lines grouped to paragraphs; bullets are removed."""
    group: list[str] = []
    margin = 0
    for indent, text in lines:
        bullet = _BULLET.match(text)
        if group and (bullet or not text or indent != margin):
            yield group
            group = []
        if text:
            margin = indent + (bullet.end() if bullet else 0)
            group.append(text[bullet.end() :] if bullet else text)
    if group:
        yield group


def _plain(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip(" ")


def _is_prose(text: str) -> bool:
    pieces = text.split(" ")
    words = sum(bool(_WORD.fullmatch(piece)) for piece in pieces)
    plain = words >= MINIMUM_WORDS and words >= WORD_SHARE * len(pieces)
    return plain and bool(_SENTENCE_END.search(text)) and not _CONTROL.search(text)


# --- the corpus -------------------------------------------------------------------------------------------------------


PINS = {"sympy": "1.14.0", "transformers": "5.23.0", "networkx": "3.6.1"}
SPLITS = {"validation": ("networkx",), "train": ("sympy", "transformers")}
SHA256 = "c8e601e62e43ffb52a38be3942e2acd81e3845d3f5ecc8b138348d1504ddcdc2"
MINIMUM_CHARACTERS = 80
# Parts of file names: of tests, of generated code, and of the templates that transformers generates models from.
_NO_PROSE = ("/tests/", "/benchmarks/", "/_antlr/", "/modular_")


def identity(data: DataConfig) -> dict[str, Any]:
    """What the text depends on; no package is read."""
    return {"packages": PINS, "sha256": SHA256}


def shards(data: DataConfig) -> list[TextShard]:
    splits: tuple[Split, Split] = ("train", "validation")
    return [
        TextShard(f"{split}-00000-of-00001", split, partial(_documents_of, split), partial(_receipt, split))
        for split in splits
    ]


def _documents_of(split: str) -> Iterator[str]:
    return iter(corpus()[split])


def _receipt(split: str) -> dict[str, Any]:
    pins = [f"{package} {PINS[package]}" for package in SPLITS[split]]
    return {"packages": pins, "sha256": fingerprint({split: corpus()[split]})}


@cache
def corpus() -> dict[str, tuple[str, ...]]:
    """Documents of both splits (about 6 s on two cores).

    Raises ValueError when a package is missing, has another version than the pin, or yields other bytes than recorded.
    """
    texts = read_corpus()
    found = fingerprint(texts)
    if found != SHA256:
        raise ValueError(
            f"data.source builtin: the docstrings of {_pins()} give SHA-256 {found[:16]}..., recorded is "
            f"{SHA256[:16]}...: an installed file was changed; reinstall these packages"
        )
    return texts


def read_corpus() -> dict[str, tuple[str, ...]]:
    """Documents of both splits, unchecked: validation first, so that training text never repeats it.

    A second process reads transformers, which is half of the work, since parsing holds Python's lock.
    """
    for package in PINS:
        _distribution(package)
    novelty, command = Novelty(), [sys.executable, "-m", "mpadam.data.builtin", "transformers"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as other:
        texts = {package: extracts(package) for package in PINS if package != "transformers"}
        output, _ = other.communicate()
    if other.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {other.returncode}: its output is above")
    texts["transformers"] = json.loads(output)
    return {
        split: tuple(document for package in packages for document in _documents(texts[package], novelty))
        for split, packages in SPLITS.items()
    }


def fingerprint(texts: dict[str, tuple[str, ...]]) -> str:
    """SHA-256 over the documents, split by split, each document ended by a NUL."""
    digest = hashlib.sha256()
    for split in sorted(texts):
        digest.update(f"{split}\0".encode())
        for document in texts[split]:
            digest.update(document.encode("utf-8") + b"\0")
    return digest.hexdigest()


def _documents(texts: list[list[str]], novelty: Novelty) -> Iterator[str]:
    """The new paragraphs of each docstring, where they are long enough together."""
    for text in texts:
        document = "\n".join(filter(novelty.keep, text))
        if len(document) >= MINIMUM_CHARACTERS:
            yield document


def extracts(package: str) -> list[list[str]]:
    """Paragraphs of each docstring of a package, in the order of the files; a repeated docstring counts once."""
    collects = gc.isenabled()
    gc.disable()  # syntax trees are millions of live objects, among which looking for garbage takes a third of the time
    try:
        docstrings = dict.fromkeys(docstring for source in _sources(package) for docstring in _docstrings(source))
        return [paragraphs(docstring) for docstring in docstrings]
    finally:
        if collects:
            gc.enable()


def _distribution(package: str) -> importlib.metadata.Distribution:
    """Raises ValueError where the pinned version is not installed."""
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f"data.source builtin: {package} is not installed; install {_pins()}") from None
    if distribution.version != PINS[package]:
        raise ValueError(
            f"data.source builtin: found {package} {distribution.version}, but the corpus is made from {_pins()}; "
            f"install them, e.g.  pip install {package}=={PINS[package]}"
        )
    return distribution


def _sources(package: str) -> Iterator[bytes]:
    """Content of the package's .py files, in the order of their names."""
    distribution = _distribution(package)
    names = sorted(file.as_posix() for file in distribution.files or () if file.suffix == ".py")
    for name in names:
        if name.startswith(f"{package}/") and not any(part in name for part in _NO_PROSE):
            yield distribution.locate_file(name).read_bytes()  # type: ignore[attr-defined]


def _docstrings(source: bytes) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in other people's strings
        tree = ast.parse(source)
    yield from _docstrings_below(tree)


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    """Descends through statements only: docstrings occur nowhere else, and expressions are most of the tree."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield docstring
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        below = getattr(node, field, None)
        for child in below if isinstance(below, list) else ():
            yield from _docstrings_below(child)


def _pins() -> str:
    return ", ".join(f"{package} {version}" for package, version in PINS.items())


if __name__ == "__main__":
    json.dump(extracts(sys.argv[1]), sys.stdout)
