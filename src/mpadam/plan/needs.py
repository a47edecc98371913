"""What the budgets need of the text, whether it supplies that, and what it weighs: sequences, shards, bytes.

How much of C4 is needed is known before anything is fetched.

What is known best counts: the manifest of prepared data; else the sizes of the shards in the data folder; else what is
published about C4. Only the first is exact, and only the first and the last lead to a refusal: a folder may still be
filling up.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpadam.plan.assumptions import BYTES_PER_TOKEN, C4_EN, SPARE_DOCUMENTS
from mpadam.plan.jobs import Training, runs
from mpadam.plan.model import CostModel
from mpadam.presence import entries
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, tuning_keys
from mpadam.study.load import ConfigError
from mpadam.study.paths import StudyPaths
from mpadam.study.run_folder import read_json
from mpadam.study.text import DataConfig

# --- what the text supplies -------------------------------------------------------------------------------------------


DOCUMENT_END_BYTES = 8  # in ends.bin, a document
TOKEN_BYTES = 2  # in tokens.bin, a token of a vocabulary of up to 65,536


@dataclass(frozen=True)
class Supply:
    """What the text gives in one pass.

    sequences: training sequences, or None where nothing is known before the data rule has run.
    basis: where the number comes from. refuses: whether it is certain enough to refuse a budget.
    """

    sequences: int | None
    basis: str
    refuses: bool


def supply(data: DataConfig, manifest: Mapping[str, Any] | None) -> Supply:
    """What is known of the training text.

    manifest: of the prepared data, None where there is none yet.
    """
    if manifest is not None:
        return Supply(int(manifest["train_sequences"]), "counted by the data rule", refuses=True)
    if not is_c4(data):
        return Supply(None, "counted when the data rule has run", refuses=False)
    shards = _local_shards(data.path)
    if shards:
        documents = round(sum(shards) * C4_EN.train_documents / C4_EN.train_bytes)
        basis = f"estimated from the {len(shards)} training shards in {data.path}"
        return Supply(sequences_of(documents, data), basis, refuses=False)
    return Supply(sequences_of(C4_EN.train_documents, data), "all of C4 en, as published", refuses=True)


def is_c4(data: DataConfig) -> bool:
    return data.source.startswith("c4")


def sequences_of(documents: int, data: DataConfig) -> int:
    """Sequences in so many documents of C4: as many (`truncate_pad`), or the least that `pack` makes of them."""
    if data.sequences == "truncate_pad":
        return documents
    return int(documents * (C4_EN.least_tokens + 1) / data.sequence_length)


def shards_needed(sequences: int, data: DataConfig) -> int:
    """Training shards of C4 to download for so many sequences, `data.epochs` passes allowed; may exceed 1,024."""
    documents = sequences / data.epochs / sequences_of(C4_EN.train_documents, data) * C4_EN.train_documents
    spare = documents * (1 + SPARE_DOCUMENTS)
    whole = math.ceil(spare / C4_EN.documents_per_shard)
    return whole if documents > C4_EN.train_documents else min(whole, C4_EN.train_shards)


def gigabytes(shards: int) -> dict[str, float]:
    """Downloads and token files of so many training shards and all validation shards; keys are those of `DataNeed`."""
    share = shards / C4_EN.train_shards
    tokens = share * (C4_EN.train_text_bytes / BYTES_PER_TOKEN + C4_EN.train_documents) * TOKEN_BYTES
    ends = share * C4_EN.train_documents * DOCUMENT_END_BYTES
    return {
        "train_gigabytes": shards * C4_EN.bytes_per_shard / 1e9,
        "validation_gigabytes": C4_EN.validation_bytes / 1e9,
        "token_gigabytes": (tokens + ends) / 1e9,
    }


def shortage(needed: int, available: Supply, data: DataConfig) -> str | None:
    """Why a budget of `needed` sequences cannot be supplied, and what to write; None where it can."""
    if available.sequences is None or needed <= available.sequences * data.epochs:
        return None
    passes = "" if data.epochs == 1 else f", {available.sequences * data.epochs:,} in {data.epochs} passes"
    return (
        f"needs {needed:,} training sequences, but the text has {available.sequences:,}{passes} ({available.basis}), "
        f"and data.epochs {data.epochs} allows no more; lower the budget, add data, or write  "
        f"epochs: {-(-needed // available.sequences)}"
    )


def _local_shards(path: str | None) -> list[int]:
    """Sizes of the training shards in a folder of C4's layout; empty where there is none."""
    inside = entries(Path(path) / "en") if path is not None else []
    found = (file for file in inside if file.match("c4-train.*.json.gz"))
    return sorted(f.stat().st_size for f in found)


# --- what the budgets need --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BudgetNeed:
    """What the longest training of a model at a budget does and reads.

    hours: GPU-hours (core-hours on a CPU) of the dearest one, over regimes and optimizers.
    passes: over the text, None where its size is not known yet. shards, gigabytes: to download, of C4 alone.
    """

    model: str
    budget: int
    steps: int
    sequences: int
    positions: int
    flops: int
    hours: float
    passes: float | None
    shards: int | None
    gigabytes: float | None


@dataclass(frozen=True)
class DataNeed:
    """What the largest budget needs.

    sequences: in the text, None where not known yet; basis: how they are known. Gigabytes: of downloads and of token
    files; None for text that is not C4 (token files: until they are made).
    """

    source: str
    basis: str
    sequences: int | None
    epochs: int
    shards: int | None
    train_gigabytes: float | None = None
    validation_gigabytes: float | None = None
    token_gigabytes: float | None = None


def read_manifest(config: StudyConfig, paths: StudyPaths) -> dict[str, Any] | None:
    """The manifest of the study's data; None where there is none or it was made with other settings."""
    manifest = read_json(paths.manifest) or {}
    try:
        made_with = manifest["request"]["sequences"]
    except (KeyError, TypeError):
        return None
    return manifest if made_with == config.data.model_dump(mode="json", include=set(made_with)) else None


def budget_needs(model: CostModel, trainings: Iterable[Training], supplied: Supply) -> list[BudgetNeed]:
    """A line for each model and budget, in the configuration's order; tuning trials count as runs of their budget."""
    cells: dict[tuple[str, int], list[Training]] = {}
    for training in trainings:
        key = training.key
        budget = key.budget if isinstance(key, RunKey) else model.config.tuning.budget
        cells.setdefault((key.model, budget), []).append(training)
    order = list(model.config.models)
    return [
        _need(model, name, budget, cells[name, budget], supplied)
        for name, budget in sorted(cells, key=lambda cell: (order.index(cell[0]), cell[1]))
    ]


def _need(model: CostModel, name: str, budget: int, trainings: Sequence[Training], supplied: Supply) -> BudgetNeed:
    data = model.config.data
    work = max(map(model.work, trainings), key=lambda work: work.steps)
    shards = shards_needed(work.sequences, data) if is_c4(data) else None
    return BudgetNeed(
        model=name,
        budget=budget,
        steps=work.steps,
        sequences=work.sequences,
        positions=work.positions,
        flops=work.flops(model.shape(name)),
        hours=max(map(model.hours, trainings)),
        passes=work.sequences / supplied.sequences if supplied.sequences else None,
        shards=shards,
        gigabytes=None if shards is None else gigabytes(shards)["train_gigabytes"],
    )


def data_need(
    config: StudyConfig, budgets: Sequence[BudgetNeed], supplied: Supply, manifest: Mapping[str, Any] | None
) -> DataNeed:
    """What the largest of the budgets needs; token files that exist are weighed."""
    shards = max((b.shards for b in budgets if b.shards is not None), default=None)
    shards = None if shards is None else min(shards, C4_EN.train_shards)
    weights = {} if shards is None else gigabytes(shards)
    if manifest is not None:
        bytes_of_files = (f["bytes"] for shard in manifest["shards"] for f in shard["files"].values())
        weights["token_gigabytes"] = sum(bytes_of_files) / 1e9
    return DataNeed(
        source=config.data.source,
        basis=supplied.basis,
        sequences=supplied.sequences,
        epochs=config.data.epochs,
        shards=shards,
        **weights,
    )


def shortages(config: StudyConfig, budgets: Iterable[BudgetNeed], supplied: Supply) -> list[str]:
    """A line for each budget that the text cannot supply, with the numbers and what to write."""
    found = ((b, shortage(b.sequences, supplied, config.data)) for b in budgets)
    return [f"model {b.model} at budget {b.budget} {why}" for b, why in found if why is not None]


# --- before anything is fetched --------------------------------------------------------------------------------------


def planned(study: StudyConfig) -> DataConfig:
    """The section `data`, with the number of training shards to fetch filled in (source c4_hub).

    Raises ConfigError where C4 has too little text for the largest budget, with the numbers.
    """
    data = study.data
    if data.source != "c4_hub" or data.train_shards is not None:
        return data
    sequences = largest_budget(study)
    shards = shards_needed(sequences, data)
    if shards > C4_EN.train_shards:
        available = sequences_of(C4_EN.train_documents, data)
        raise ConfigError(
            f"data: the largest budget needs {sequences:,} training sequences, {shards:,} shards of C4, which has "
            f"{C4_EN.train_shards:,} ({available:,} sequences), and data.epochs {data.epochs} allows "
            f"{available * data.epochs:,}; lower the budget, or write  epochs: {-(-sequences // available)}"
        )
    return data.model_copy(update={"train_shards": shards})


def largest_budget(study: StudyConfig) -> int:
    """Training sequences that the longest run or trial of the study reads."""
    model = CostModel(study)
    trainings = [*runs(study), *(Training(key, 0) for key in tuning_keys(study))]
    return max(model.work(training).sequences for training in trainings)
