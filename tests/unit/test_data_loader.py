"""What training reads, against plain lists: sequences, shuffle, epochs, ranks, the fixed validation set."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import bpe, c4_config, documents, own_encoding, prepared, quiet, write_c4
from hypothesis import given
from hypothesis import strategies as st

from mpadam.data import Batch, TokenData, TrainBatches, ValidationSet
from mpadam.data.sequences import permute
from mpadam.data.stages import prepare

LENGTH = 48
KINDS = ["pack", "truncate_pad"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    """Three training shards, one of them without a document that is kept."""
    folder = tmp_path_factory.mktemp("loader")
    train = [documents(50, seed=1), [" ", ""], documents(33, seed=2)]
    write_c4(folder / "text", train=train, validation=documents(41, seed=3))
    return prepared(folder)


@pytest.fixture(scope="module")
def train_ids(data: TokenData) -> list[list[int]]:
    return own_encoding(data.folder, [*documents(50, seed=1), *documents(33, seed=2)])


@pytest.fixture(scope="module")
def validation_ids(data: TokenData) -> list[list[int]]:
    return own_encoding(data.folder, documents(41, seed=3))


def all_sequences(kind: str, ids: list[list[int]]) -> list[list[int]]:
    """Reference: the sequences of a split, from its documents as lists."""
    if kind == "truncate_pad":
        return [document[:LENGTH] for document in ids]
    stream = [token for document in ids for token in document]
    return [stream[i : i + LENGTH] for i in range(0, len(stream) - LENGTH + 1, LENGTH)]


def loader(data: TokenData, kind: str = "pack", *, batch: int = 8, seed: int = 1) -> TrainBatches:
    return TrainBatches(data, sequences=kind, sequence_length=LENGTH, global_batch_size=batch, seed=seed)


def rows_of(batch: Batch) -> list[list[int]]:
    """Sequences of a batch without their padding, which labels tell."""
    return [ids[labels != -100].tolist() for ids, labels in zip(batch.input_ids, batch.labels, strict=True)]


def digest(batch: Batch) -> str:
    return hashlib.sha256(batch.input_ids.tobytes() + batch.labels.tobytes()).hexdigest()


# --- the shuffle -----------------------------------------------------------------------------------------------------


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64), epoch=st.integers(0, 1000))
def test_shuffle_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    places = permute(np.arange(size), size=size, seed=seed, epoch=epoch)
    assert sorted(places.tolist()) == list(range(size))


def test_shuffle_depends_on_seed_and_epoch_only() -> None:
    one = permute(np.arange(1000), size=1000, seed=1, epoch=0)
    assert (one == permute(np.arange(1000), size=1000, seed=1, epoch=0)).all()
    for other in (
        permute(np.arange(1000), size=1000, seed=2, epoch=0),
        permute(np.arange(1000), size=1000, seed=1, epoch=1),
    ):
        assert (one == other).sum() < 10  # a random permutation shares 1 place on average


def test_shuffle_is_fixed_for_all_time() -> None:
    """Data order is part of a run's numbers: if this changes, the numerics version must."""
    assert permute(np.arange(8), size=8, seed=0, epoch=0).tolist() == [3, 6, 4, 2, 7, 1, 5, 0]
    assert permute(np.arange(3), size=364_868_892, seed=7, epoch=2).tolist() == [127349527, 94377279, 123533383]


@pytest.mark.parametrize("size", [5, 10])
def test_shuffle_puts_every_thing_everywhere(size: int) -> None:
    """Over many seeds each thing comes to each place equally often (chi-squared, 5 sigma)."""
    draws = 3000
    counts = np.zeros((size, size))
    for seed in range(draws):
        counts[np.arange(size), permute(np.arange(size), size=size, seed=seed, epoch=0)] += 1
    expected = draws / size
    chi2, freedom = ((counts - expected) ** 2 / expected).sum(), (size - 1) ** 2
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_shuffle_of_billions_needs_no_list_of_them() -> None:
    size = 3_000_000_001
    places = permute(np.arange(size - 100_000, size), size=size, seed=3, epoch=0)
    assert places.min() >= 0
    assert places.max() < size
    assert len(set(places.tolist())) == 100_000
    assert abs(places.mean() / size - 0.5) < 5 / math.sqrt(12 * 100_000)


# --- sequences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_every_sequence_once(kind: str, data: TokenData, train_ids: list[list[int]]) -> None:
    expected = all_sequences(kind, train_ids)
    batches = loader(data, kind, batch=1)
    assert batches.sequences == len(expected)
    rows = [rows_of(batches.batch(step))[0] for step in range(len(expected))]
    assert sorted(rows) == sorted(expected)
    assert rows != expected  # shuffled


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_no_target(kind: str, data: TokenData) -> None:
    batch = loader(data, kind, batch=60).batch(0)
    assert batch.input_ids.dtype == batch.labels.dtype == np.int64
    assert batch.input_ids.shape == batch.labels.shape == (60, LENGTH)
    real = batch.labels != -100
    assert (batch.labels[real] == batch.input_ids[real]).all()
    assert (batch.input_ids[~real] == data.pad_id).all()
    assert (np.diff(real.astype(int), axis=1) <= 0).all()  # padding stands on the right
    assert (~real).any() == (kind == "truncate_pad")
    assert batch.positions == 60 * LENGTH
    assert batch.target_tokens == sum(len(row) - 1 for row in rows_of(batch))


def test_pack_crosses_documents_and_shards(data: TokenData, train_ids: list[list[int]]) -> None:
    border = sum(len(document) for document in train_ids[:50])
    stream = [token for document in train_ids for token in document]
    assert data.train.span(border - 5, border + 5).tolist() == stream[border - 5 : border + 5]
    assert data.train.documents == 83
    assert data.train.document(49).tolist() == train_ids[49]
    assert data.train.document(50).tolist() == train_ids[50]


@pytest.mark.parametrize("kind", KINDS)
def test_manifest_counts_what_the_loader_gives(
    kind: str, tmp_path: Path, data: TokenData, train_ids: list[list[int]]
) -> None:
    config = c4_config(data.folder.parent / "text", sequences=kind, sequence_length=LENGTH, validation_tokens=300)
    prepare(config, bpe(), tmp_path, log=quiet)
    own = TokenData.open(tmp_path)
    manifest, expected = own.manifest, all_sequences(kind, train_ids)
    targets = sum(len(sequence) - 1 for sequence in expected)
    filled = sum(map(len, expected))
    assert manifest["train_sequences"] == manifest["train"]["sequences"] == len(expected)
    assert manifest["train"]["positions"] == len(expected) * LENGTH
    assert manifest["train"]["target_tokens"] == targets
    assert manifest["train"]["padding_share"] == pytest.approx(1 - filled / (len(expected) * LENGTH))
    assert manifest["train"]["tokens"] == sum(map(len, train_ids))
    text = [*documents(50, seed=1), *documents(33, seed=2)]
    assert manifest["train"]["bytes_per_token"] == sum(map(len, text)) / sum(map(len, train_ids))
    counts: Counter[int] = Counter()
    for half in ("selection", "report"):
        for batch in validation(own, kind, half, tokens=300).batches(7):
            counts.update(token for row in rows_of(batch) for token in row[1:])
    assert counts.total() == 300 == manifest["validation_set"]["target_tokens"]
    entropy = -sum(n / 300 * math.log(n / 300) for n in counts.values())
    assert manifest["unigram_entropy"] == pytest.approx(entropy, rel=1e-12)


# --- order: resume, epochs, ranks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_d6_resumed_twice_past_the_end_of_the_data(kind: str, data: TokenData) -> None:
    """D6: killed at 10, at 15, run to 40 (the data are exhausted several times): the hashes of one long run."""
    whole = loader(data, kind, batch=13)
    expected = [digest(whole.batch(step)) for step in range(40)]
    assert 2 * whole.sequences < 40 * 13
    resumed = []
    for start, stop in ((0, 10), (10, 15), (15, 40)):
        fresh = loader(TokenData.open(data.folder), kind, batch=13)
        resumed += [digest(fresh.batch(step)) for step in range(start, stop)]
    assert resumed == expected
    assert len(set(expected)) == 40


def test_d6_each_epoch_holds_each_sequence_once_across_batch_borders(data: TokenData) -> None:
    """D6: nothing is lost or repeated where a batch takes the end of one epoch and the start of the next."""
    batches = loader(data, batch=13)
    order = np.concatenate([batches.indices(step) for step in range(4 * batches.sequences // 13 + 1)]).tolist()
    epochs = [order[k * batches.sequences : (k + 1) * batches.sequences] for k in range(4)]
    assert batches.sequences % 13
    assert all(sorted(epoch) == list(range(batches.sequences)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_d6_a_batch_larger_than_the_data(data: TokenData) -> None:
    """D6: one batch of two and a half epochs has every document twice or three times."""
    batch = loader(data, "truncate_pad", batch=207).indices(0)
    assert Counter(Counter(batch.tolist()).values()) == {2: 42, 3: 41}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_d7_batches_do_not_depend_on_the_number_of_ranks(world_size: int, data: TokenData) -> None:
    """D7: the ranks' rows together are the batch, each example once, the same number of steps for every rank."""
    batches = loader(data, batch=12)
    share = 12 // world_size
    for step in (0, 5, 30):
        parts = [batches.batch(step, rows=slice(rank * share, (rank + 1) * share)) for rank in range(world_size)]
        joined = np.concatenate([part.input_ids for part in parts])
        assert all(len(part.input_ids) == share for part in parts)
        assert (joined == batches.batch(step).input_ids).all()


def test_seed_orders_the_data(data: TokenData) -> None:
    assert digest(loader(data, seed=1).batch(0)) != digest(loader(data, seed=2).batch(0))


# --- the fixed validation set ----------------------------------------------------------------------------------------


def validation(data: TokenData, kind: str, half: Any, *, tokens: int = 10_000_000) -> ValidationSet:
    return ValidationSet(data, sequences=kind, sequence_length=LENGTH, tokens=tokens, half=half)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", ["selection", "report"])
def test_t1_same_targets_at_any_batch_and_world_size(kind: str, half: str, data: TokenData) -> None:
    """T1: the targets are those of the set, at any batch size, at any number of ranks; no tail is dropped."""
    expected = validation(data, kind, half, tokens=503).target_tokens
    assert expected == (252 if half == "selection" else 251)
    seen = []
    for batch_size, world_size in ((1, 1), (3, 1), (8, 1), (1000, 1), (3, 2), (8, 3)):
        chosen = validation(data, kind, half, tokens=503)
        batches = [
            b for rank in range(world_size) for b in chosen.batches(batch_size, rank=rank, world_size=world_size)
        ]
        assert sum(batch.target_tokens for batch in batches) == expected
        assert sum(len(batch.input_ids) for batch in batches) == len(chosen)
        seen.append(sorted(row for batch in batches for row in rows_of(batch)))
    assert all(rows == seen[0] for rows in seen)


@pytest.mark.parametrize("half", [0, 1])
def test_packed_validation_has_every_token_as_target_once(
    half: int, data: TokenData, validation_ids: list[list[int]]
) -> None:
    stream = [token for document in validation_ids[half::2] for token in document]
    chosen = validation(data, "pack", ("selection", "report")[half])
    rows = [row for batch in chosen.batches(4) for row in rows_of(batch)]
    assert [token for row in rows for token in row[1:]] == stream[1:]
    assert all(len(row) == LENGTH for row in rows[:-1])
    assert chosen.target_tokens == len(stream) - 1


@pytest.mark.parametrize("half", [0, 1])
def test_padded_validation_is_documents(half: int, data: TokenData, validation_ids: list[list[int]]) -> None:
    chosen = validation(data, "truncate_pad", ("selection", "report")[half])
    rows = [row for batch in chosen.batches(4) for row in rows_of(batch)]
    assert rows == [document[:LENGTH] for document in validation_ids[half::2]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_smaller_set_is_the_beginning_of_a_larger_one(kind: str, data: TokenData) -> None:
    def targets(tokens: int) -> list[int]:
        batches = validation(data, kind, "report", tokens=tokens).batches(5)
        return [token for batch in batches for row in rows_of(batch) for token in row[1:]]

    for tokens in (2, 31, 32, 200):
        assert targets(tokens) == targets(600)[: tokens // 2]


def test_halves_share_no_document(data: TokenData) -> None:
    halves = [
        {tuple(row) for batch in validation(data, "truncate_pad", half).batches(4) for row in rows_of(batch)}
        for half in ("selection", "report")
    ]
    assert halves[0]
    assert halves[1]
    assert not halves[0] & halves[1]


def test_too_little_text(tmp_path: Path) -> None:
    write_c4(tmp_path / "text", validation=documents(1, seed=5))
    with pytest.raises(ValueError, match=r"report half of the validation set is empty.*has 1 documents"):
        prepared(tmp_path)


def test_sequences_longer_than_the_text(data: TokenData) -> None:
    with pytest.raises(ValueError, match=r"data\.sequence_length 1000000: .* does not fill one sequence"):
        TrainBatches(data, sequences="pack", sequence_length=1_000_000, global_batch_size=1, seed=0)


FEW_FILES = """
import resource, sys
from pathlib import Path
from mpadam.data import loader
from mpadam.data import TokenData, TrainBatches

resource.setrlimit(resource.RLIMIT_NOFILE, (60, int(sys.argv[2])))
loader.OTHER_FILES = 50
data = TokenData.open(Path(sys.argv[1]))
batches = TrainBatches(data, sequences="truncate_pad", sequence_length=8, global_batch_size=500, seed=0)
print(sum(batches.batch(step).target_tokens for step in range(10)))
"""


def many_shards(data: TokenData, folder: Path) -> Path:
    """Data whose manifest names a training shard a hundred times."""
    shard = data.manifest["shards"][0]
    folder.mkdir()
    (folder / "tokens").symlink_to(data.folder / "tokens")
    (folder / "manifest.json").write_text(json.dumps({**data.manifest, "shards": [shard] * 100}))
    return folder


@pytest.mark.parametrize("hard", [250, 249])
def test_many_shards_are_open_at_once(hard: int, data: TokenData, tmp_path: Path) -> None:
    """Each memory map keeps a file open, and C4 has more of them than a process may open by default."""
    command = [sys.executable, "-c", FEW_FILES, str(many_shards(data, tmp_path / "many")), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if hard == 250:
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 500 * 10
    else:
        assert "ValueError: the data need 250 open files, but this system allows 249" in done.stderr
