"""What the text supplies: C4's published numbers, a folder's shards, a manifest; refusals with the numbers."""

from pathlib import Path

import pytest

from mpadam.plan.assumptions import C4_EN
from mpadam.plan.needs import gigabytes, shards_needed, shortage, supply
from mpadam.study.text import DataConfig

C4 = DataConfig(source="c4_folder", path="/nowhere/c4")
BUILTIN = DataConfig(source="builtin")


def test_the_largest_budget_of_the_paper_fits_into_c4() -> None:
    """350m at 8x: 480,000 steps of 512 sequences (docs/algorithm.md, "Models")."""
    supplied = supply(C4, None)
    assert supplied.sequences == 364_868_892
    assert shortage(480_000 * 512, supplied, C4) is None
    assert shards_needed(480_000 * 512, C4) == 694, "245.76M / 356,317 per shard = 689.7, and 0.5% to spare"


@pytest.mark.parametrize(("sequences", "shards"), [(1, 1), (356_000, 2), (5_120_000, 15), (364_868_892, 1024)])
def test_as_many_shards_as_the_sequences_need(sequences: int, shards: int) -> None:
    assert shards_needed(sequences, C4) == shards


def test_more_passes_need_fewer_shards() -> None:
    twice = C4.model_copy(update={"epochs": 2})
    assert shards_needed(100_000_000, twice) == shards_needed(50_000_000, C4)


def test_packing_makes_more_sequences_of_a_shard() -> None:
    """At least 427 tokens per document, and its separator, give 1.67 sequences of 256."""
    packed = C4.model_copy(update={"sequences": "pack"})
    assert supply(packed, None).sequences == pytest.approx(1.674 * 364_868_892, rel=1e-3)
    assert shards_needed(5_120_000, packed) == 9


def test_what_c4_cannot_supply_is_refused_with_the_numbers() -> None:
    supplied = supply(C4, None)
    assert supplied.refuses
    message = shortage(1_000_000_000, supplied, C4)
    assert message is not None
    for part in ("1,000,000,000", "364,868,892", "data.epochs 1", "write  epochs: 3"):
        assert part in message


def test_epochs_that_the_study_allows_are_counted() -> None:
    three = C4.model_copy(update={"epochs": 3})
    assert shortage(1_000_000_000, supply(three, None), three) is None
    two = C4.model_copy(update={"epochs": 2})
    message = shortage(1_000_000_000, supply(two, None), two)
    assert message is not None
    assert "729,737,784 in 2 passes" in message


def test_a_folder_is_estimated_by_the_size_of_its_shards_and_refuses_nothing(tmp_path: Path) -> None:
    """The sizes and counts of three real shards of C4: 400 documents in 357,713 bytes, 400 in 342,644."""
    folder = tmp_path / "en"
    folder.mkdir()
    for number, size in enumerate((357_713, 342_644)):
        (folder / f"c4-train.{number:05}-of-01024.json.gz").write_bytes(bytes(size))
    (folder / "c4-validation.00000-of-00008.json.gz").write_bytes(bytes(10**6))
    supplied = supply(C4.model_copy(update={"path": str(tmp_path)}), None)
    assert supplied.sequences == pytest.approx(800, rel=0.03)
    assert not supplied.refuses
    assert "2 training shards" in supplied.basis


def test_prepared_data_are_counted_not_estimated() -> None:
    supplied = supply(C4, {"train_sequences": 1234, "vocab_size": 32_000})
    assert (supplied.sequences, supplied.refuses) == (1234, True)
    assert shortage(1235, supplied, C4) is not None
    assert shortage(1234, supplied, C4) is None


def test_text_that_is_not_c4_is_known_when_it_is_prepared() -> None:
    supplied = supply(BUILTIN, None)
    assert supplied.sequences is None
    assert shortage(10**12, supplied, BUILTIN) is None


def test_gigabytes_of_all_of_c4() -> None:
    """The dataset's card: 326,778,635,540 bytes to download in 1,032 shards."""
    everything = gigabytes(1024)
    train = everything["train_gigabytes"]
    assert train + everything["validation_gigabytes"] == pytest.approx(326.78, abs=0.01)
    assert gigabytes(512)["train_gigabytes"] == pytest.approx(train / 2)
    assert C4_EN.bytes_per_shard == pytest.approx(0.32e9, rel=0.01)


def test_token_files_hold_every_token_and_the_end_of_every_document() -> None:
    """2,271 bytes of text a document are 568 tokens of 4 bytes; with a separator, 2 bytes each, and 8 for the end."""
    documents = C4_EN.train_documents
    assert gigabytes(1024)["token_gigabytes"] == pytest.approx(documents * (569 * 2 + 8) / 1e9, rel=2e-3)
