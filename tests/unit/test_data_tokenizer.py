"""The tokenizer: the same bytes every time, one separator a document, folders that transformers loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data_samples import bpe, c4_config, documents, files_below, prepared, quiet, write_c4
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from mpadam.data.stages import prepare
from mpadam.data.tokenizer import load_tokenizer, save_bpe, tokenizer_identity, train_bpe
from mpadam.data.tokens import token_dtype
from mpadam.study.text import TokenizerConfig

TEXTS = ["weight gradient weight", "moment", "gradient moment update"]


def word_tokenizer(folder: Path, *, eos: str | None = "</s>", template: str | None = None, **config: Any) -> Path:
    """A saved word-level tokenizer whose post-processor adds what `template` says."""
    words = ["<unk>", "<s>", "</s>", "weight", "gradient", "moment", "update", "word"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<s>", "</s>"])
    if template:
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    folder.mkdir(parents=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, **config}))
    return folder


def folder_config(path: Path) -> TokenizerConfig:
    return TokenizerConfig(source="folder", path=str(path))


@pytest.mark.parametrize("template", [None, "<s> $A", "$A </s>", "<s> $A </s>", "<s> <s> $A </s> </s>"])
def test_d4_one_separator_a_document_whatever_the_tokenizer_adds(template: str | None, tmp_path: Path) -> None:
    """D4: automatic BOS and EOS neither double nor replace the separator."""
    word_tokenizer(tmp_path / "tokenizer", template=template)
    write_c4(tmp_path / "text", train=[TEXTS], validation=["word word", "word"])
    data = prepared(tmp_path, tokenizer=folder_config(tmp_path / "tokenizer"), sequence_length=4)
    read = [data.train.document(index).tolist() for index in range(3)]
    assert read == [[3, 4, 3, 2], [5, 2], [4, 5, 6, 2]]


def test_d4_no_end_of_text_token_is_an_error(tmp_path: Path) -> None:
    """D4: without EOS documents could not be told apart."""
    folder = word_tokenizer(tmp_path / "tokenizer", eos=None)
    with pytest.raises(ValueError, match=r"names no end-of-text token.*write e\.g\.  eos_token: </s>  in the section"):
        prepare(c4_config(write_c4(tmp_path / "text")), folder_config(folder), tmp_path / "data", log=quiet)
    assert not (tmp_path / "data").exists()


def test_d4_end_of_text_outside_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"eos_token is '<\|end\|>', which is not in the vocabulary"):
        load_tokenizer(word_tokenizer(tmp_path / "tokenizer", eos="<|end|>"))


def test_d4_a_separator_inside_a_document_is_removed_and_counted(tmp_path: Path) -> None:
    """D4: where the vocabulary itself has '</s>' as a word, a text that says it must not be split there."""
    word_tokenizer(tmp_path / "tokenizer")
    texts = ["weight </s> gradient", "</s>", "<s> moment"]
    write_c4(tmp_path / "text", train=[texts], validation=["word word", "word"])
    data = prepared(tmp_path, tokenizer=folder_config(tmp_path / "tokenizer"), sequence_length=4)
    assert data.train.document(0).tolist() == [3, 4, 2]
    assert data.train.document(1).tolist()[1:] == [5, 2]
    counts = data.manifest["train"]
    assert (counts["separators_removed"], counts["documents"], counts["empty"]) == (2, 2, 1)


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "lstrip": False, "special": True}])
def test_names_of_special_tokens_may_be_objects(eos: Any, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(word_tokenizer(tmp_path / "tokenizer", eos=eos, pad_token="<unk>"))
    assert (tokenizer.eos_id, tokenizer.pad_id) == (2, 0)


def test_special_tokens_map_counts_where_the_configuration_is_silent(tmp_path: Path) -> None:
    folder = word_tokenizer(tmp_path / "tokenizer", eos=None)
    (folder / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_id == tokenizer.pad_id == 2


def test_vocab_size_is_what_the_embedding_needs(tmp_path: Path) -> None:
    """Added tokens count, and so does a gap in the numbers."""
    folder = word_tokenizer(tmp_path / "tokenizer")
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([AddedToken("<extra>")])
    backend.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).vocab_size == 9


def test_saved_truncation_and_padding_do_not_act(tmp_path: Path) -> None:
    folder = word_tokenizer(tmp_path / "tokenizer")
    plain = load_tokenizer(folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(folder / "tokenizer.json"))
    changed = load_tokenizer(folder)
    assert changed.encode(TEXTS) == plain.encode(TEXTS) == [[3, 4, 3], [5], [4, 5, 6]]
    assert changed.fingerprint == plain.fingerprint


def test_fingerprint_ignores_the_form_and_sees_the_content(tmp_path: Path) -> None:
    folder = word_tokenizer(tmp_path / "tokenizer")
    before = load_tokenizer(folder).fingerprint
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items())), indent=7))
    assert load_tokenizer(folder).fingerprint == before
    content["model"]["vocab"]["wordy"] = content["model"]["vocab"].pop("word")
    path.write_text(json.dumps(content))
    assert load_tokenizer(folder).fingerprint != before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, r"has no tokenizer\.json; save the tokenizer there with"),
        ("tokenizer.json", "{}", r"tokenizer\.json: not a tokenizer"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not JSON .*; save the tokenizer again"),
    ],
)
def test_broken_folders(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    folder = word_tokenizer(tmp_path / "tokenizer")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(folder)


def test_text_too_small_for_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"supports (\d+) tokens, not 5000; write  vocab_size: \1"):
        train_bpe(documents(20), vocab_size=5000)


def test_trained_tokenizer_keeps_every_character(tmp_path: Path) -> None:
    save_bpe(train_bpe(documents(200), vocab_size=320), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.eos_id) == (320, 0, 1)
    text = "Ünïcödé\t 日本 \x00 \n\n  😀 weight gradient"
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_a_tokenizer_is_learned_from_words_not_from_endless_ones() -> None:
    texts = documents(200)
    plain = train_bpe(texts, vocab_size=320).to_str()
    assert train_bpe([*texts, "x" * 100_000], vocab_size=320).to_str() == plain


@pytest.mark.parametrize("threads", [1, 3])
def test_same_bytes_at_any_number_of_threads(threads: int, tmp_path: Path) -> None:
    """Tokenizer and tokens, made in another process with other threads and another hash seed."""
    data = prepared(tmp_path)
    request = {"data": c4_config(tmp_path / "text").model_dump(), "tokenizer": bpe().model_dump()}
    command = [sys.executable, "-m", "mpadam", "data", "--request", json.dumps(request), "--out", str(tmp_path / "b")]
    setting = {"RAYON_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(threads)}
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **setting})
    assert files_below(tmp_path / "b") == files_below(data.folder)


def test_transformers_loads_the_folder(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    data = prepared(tmp_path)
    loaded = AutoTokenizer.from_pretrained(data.folder / "tokenizer")
    text = documents(1, seed=1)[0]
    assert [*loaded(text).input_ids, loaded.eos_token_id] == data.train.document(0).tolist()
    assert loaded.decode(data.train.document(0)[:-1].tolist()) == text
    assert (loaded.pad_token_id, loaded.eos_token_id, len(loaded)) == (0, 1, 300)


def test_identity_of_a_folder_is_its_content(tmp_path: Path) -> None:
    one, two = word_tokenizer(tmp_path / "one"), word_tokenizer(tmp_path / "two", template="<s> $A")
    assert tokenizer_identity(folder_config(one)) == tokenizer_identity(folder_config(two))
    three = word_tokenizer(tmp_path / "three", eos="<s>")
    assert tokenizer_identity(folder_config(one)) != tokenizer_identity(folder_config(three))


@pytest.mark.parametrize(("vocab_size", "dtype"), [(300, "<u2"), (65_536, "<u2"), (65_537, "<u4")])
def test_token_numbers_fit(vocab_size: int, dtype: str) -> None:
    assert token_dtype(vocab_size) == dtype


def test_large_vocabularies_are_stored_in_32_bits(tmp_path: Path) -> None:
    words = {f"w{number}": number for number in range(70_000)} | {"</s>": 70_000}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "tokenizer").mkdir()
    backend.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    write_c4(tmp_path / "text", train=[["w69999 w1", "w65536"]], validation=["w2 w3", "w4"])
    data = prepared(tmp_path, tokenizer=folder_config(tmp_path / "tokenizer"), sequence_length=4)
    assert [data.train.document(index).tolist() for index in range(2)] == [[69_999, 1, 70_000], [65_536, 70_000]]
    assert data.train.span(1, 5).tolist() == [1, 70_000, 65_536, 70_000]
