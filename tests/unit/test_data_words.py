"""Words encoded once give what the tokenizer's own library gives, for any text; where they might not, they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import documents
from hypothesis import given, settings
from hypothesis import strategies as st
from test_data_tokenizer import word_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mpadam.data import tokenizer as words
from mpadam.data.tokenizer import TextTokenizer, encoder, load_tokenizer, save_bpe, train_bpe

MARK = "\u2581"
# Spaces, other white space, the mark itself, a special token, letters, digits, signs, characters of several bytes.
PIECES = st.sampled_from(
    [
        " ",
        "  ",
        "\n",
        "\t",
        "\x1c",
        "\xa0",
        "\u3000",
        "\u200b",
        MARK,
        "</s>",
        "'s",
        "a",
        "ab",
        "abab",
        "7",
        "!",
        "é",
        "日",
        "😀",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.characters(exclude_categories=["Cs"])), max_size=12).map("".join)


def llama_like(folder: Path, *, added: tuple[str, ...] = (), **model: Any) -> TextTokenizer:
    """LLaMA's kind: spaces become a mark before it, no pieces before merging, bytes for unknown characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256)), MARK, *"abs7!'n", *added]
    merges = [("a", "b"), ("ab", "ab"), (MARK, "a"), (MARK, MARK), (MARK + "a", "b"), (MARK + MARK, MARK), ("a", "n")]
    vocab = {piece: number for number, piece in enumerate([*pieces, *("".join(pair) for pair in merges)])}
    backend = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True, **model))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    backend.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens([AddedToken(name, normalized=True) for name in ("<unk>", "<s>", "</s>")])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return load_tokenizer(folder)


def gpt2_like(folder: Path) -> TextTokenizer:
    save_bpe(train_bpe([*documents(200), "it's 77 abab! " * 50], vocab_size=340), folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="module", params=[llama_like, gpt2_like])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    made: TextTokenizer = request.param(tmp_path_factory.mktemp("tokenizer"))
    assert isinstance(encoder(made, "<u2"), words._Compared)  # the words' way is what is tested
    return made


@pytest.fixture(autouse=True)
def _without_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison that guards each shard is these tests' own business."""
    monkeypatch.setattr(words, "COMPARED", 0)


def numbers(encoded: list[bytes]) -> list[list[int]]:
    return [np.frombuffer(content, "<u2").tolist() for content in encoded]


@settings(max_examples=400, deadline=None)
@given(texts=st.lists(TEXTS, max_size=3))
def test_words_give_what_the_library_gives(texts: list[str], tokenizer: TextTokenizer) -> None:
    assert numbers(encoder(tokenizer, "<u2")(texts)) == tokenizer.encode(texts)


def test_real_text_with_few_words_kept(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "WORDS_KEPT", 7)
    monkeypatch.setattr(words, "LONGEST_KEPT", 5)
    texts = [
        *documents(100, seed=7),
        "x" * 50_000,
        " ",
        "a ",
        " a",
        "a  b",
        "a\n b",
        "\n  b",
        f"a{MARK} {MARK}b",
        "</s> </s>",
    ]
    assert numbers(encoder(tokenizer, "<u2")(texts)) == tokenizer.encode(texts)


def with_space_inside(folder: Path) -> TextTokenizer:
    return llama_like(folder, added=(f"a{MARK}b",))


def with_dropout(folder: Path) -> TextTokenizer:
    return llama_like(folder, dropout=0.1)


def with_whole_words_first(folder: Path) -> TextTokenizer:
    return llama_like(folder, ignore_merges=True)


def changed(folder: Path, change: Any) -> TextTokenizer:
    gpt2_like(folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    change(backend)
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def with_prefix_space(folder: Path) -> TextTokenizer:
    def change(backend: Tokenizer) -> None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)

    return changed(folder, change)


def with_a_word_that_has_a_space(folder: Path) -> TextTokenizer:
    return changed(folder, lambda backend: backend.add_tokens(["weight gradient"]))


def with_lower_case(folder: Path) -> TextTokenizer:
    def change(backend: Tokenizer) -> None:
        backend.normalizer = normalizers.Lowercase()

    return changed(folder, change)


def of_words(folder: Path) -> TextTokenizer:
    return load_tokenizer(word_tokenizer(folder / "words"))


@pytest.mark.parametrize(
    "make",
    [
        with_space_inside,
        with_dropout,
        with_whole_words_first,
        with_prefix_space,
        with_a_word_that_has_a_space,
        with_lower_case,
        of_words,
    ],
)
def test_other_tokenizers_take_the_librarys_way(make: Any, tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    encode = encoder(tokenizer, "<u2")
    assert not isinstance(encode, words._Compared)
    if make is not with_dropout:  # which encodes at random
        texts = ["weight gradient", "a b", "A B"]
        assert numbers(encode(texts)) == tokenizer.encode(texts)


def test_an_encoding_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard works: words of a tokenizer that must not be cut."""
    monkeypatch.setattr(words, "COMPARED", 50)
    monkeypatch.setattr(words, "_starts_only", lambda model: True)
    backend = Tokenizer.from_str(json.dumps(with_merge_across(tmp_path)))
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    encode = encoder(load_tokenizer(tmp_path), "<u2")
    with pytest.raises(AssertionError, match="depends on its neighbours"):
        encode(["a a"])


def with_merge_across(folder: Path) -> dict[str, Any]:
    llama_like(folder)
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"][f"a{MARK}"] = len(content["model"]["vocab"])
    content["model"]["merges"].insert(0, ["a", MARK])
    return content
