"""The built-in corpus: docstrings of pinned, pure-Python packages that are dependencies anyway.

Training text from sympy and transformers, validation text from networkx: real English, offline, nothing redistributed.
The packages are read, never imported. A document is the prose (`prose.py`) of one docstring; a paragraph that mostly
repeats an earlier one is left out, validation text coming first, so that no training document repeats a validation one.
Wheels of pure Python hold the same files on every platform; the SHA-256 of the result is checked nevertheless, since
golden numbers are tied to it.

    python -c 'from mpadam.data.builtin import corpus; print(corpus()["validation"][0])'
"""

import ast
import gc
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from mpadam.data.prose import Novelty, paragraphs
from mpadam.data.text import Split, TextShard
from mpadam.study.text import DataConfig

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
    """One shard per split."""
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
    """All docstrings of a module, in the order of the file."""
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
