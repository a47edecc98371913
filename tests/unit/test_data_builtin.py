"""The built-in corpus: the recorded bytes, its sizes, no text in both splits, nothing imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from data_samples import quiet

from mpadam.data import TokenData, builtin
from mpadam.data.builtin import corpus
from mpadam.data.sources import source_identity
from mpadam.data.stages import prepare
from mpadam.study.text import DataConfig, TokenizerConfig

BUILTIN = DataConfig(source="builtin", sequences="pack", sequence_length=64, validation_tokens=20_000)


def word_shingles(text: str, n: int = 5) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def test_sizes_and_recorded_checksum() -> None:
    texts = corpus()  # raises where the bytes are not those recorded
    assert sum(map(len, texts["train"])) > 3_000_000
    assert 300_000 < sum(map(len, texts["validation"])) < 1_000_000
    assert all(len(document) >= 80 for split in texts.values() for document in split)


def test_no_training_paragraph_repeats_validation_text() -> None:
    texts = corpus()
    held_out = set().union(*(word_shingles(document) for document in texts["validation"]))
    shares = [
        len(shingles & held_out) / len(shingles)
        for document in texts["train"]
        for paragraph in document.split("\n")
        if (shingles := word_shingles(paragraph))
    ]
    assert max(shares) < 0.5
    assert not set(texts["train"]) & set(texts["validation"])


def test_every_document_is_there_once() -> None:
    documents = [document for split in corpus().values() for document in split]
    assert len(set(documents)) == len(documents)


def test_packages_are_read_and_not_imported() -> None:
    """Of each a few files, since all are read as these are."""
    program = (
        "import sys; from itertools import islice; from mpadam.data import builtin; files = builtin._sources;"
        "builtin._sources = lambda package: islice(files(package), 40);"
        "assert all(len(builtin.extracts(package)) > 20 for package in builtin.PINS);"
        "print(sorted({'networkx', 'sympy', 'transformers', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builtin.PINS, "networkx", "3.4.2")
    with pytest.raises(ValueError, match=r"found networkx .*, but .* networkx 3\.4\.2.*pip install networkx==3\.4\.2"):
        builtin.read_corpus()


def test_a_missing_package_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builtin.PINS, "no-such-package", "1.0")
    monkeypatch.setattr(builtin, "SPLITS", {"validation": ("no-such-package",)})
    with pytest.raises(ValueError, match="no-such-package is not installed"):
        builtin.read_corpus()


def test_other_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"train": ("changed",), "validation": ("text",)}
    monkeypatch.setattr(builtin, "read_corpus", lambda: texts)
    with pytest.raises(ValueError, match=r"sympy 1\.14\.0.*recorded is"):
        builtin.corpus.__wrapped__()


def test_identity_says_versions_without_reading() -> None:
    identity = source_identity(BUILTIN)
    assert identity == {"source": "builtin", "packages": builtin.PINS, "sha256": builtin.SHA256}


def test_prepared_corpus_decodes_to_its_documents(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    manifest = prepare(BUILTIN, TokenizerConfig(source="bpe", vocab_size=1024), tmp_path, log=quiet)
    assert manifest["vocab_size"] == 1024
    assert manifest["validation_set"]["target_tokens"] == 20_000
    data = TokenData.open(tmp_path, verify=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    for index in (0, 1, 4000, data.train.documents - 1):
        ids = data.train.document(index).tolist()
        assert ids[-1] == manifest["eos_id"]
        assert tokenizer.decode(ids[:-1]) == corpus()["train"][index]
