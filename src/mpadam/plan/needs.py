"""What the budgets need of the text, and what that weighs; how much of C4, before anything is fetched."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpadam.plan import supply
from mpadam.plan.assumptions import C4_EN
from mpadam.plan.jobs import Training, runs
from mpadam.plan.model import CostModel
from mpadam.plan.supply import Supply
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, tuning_keys
from mpadam.study.load import ConfigError
from mpadam.study.paths import StudyPaths
from mpadam.study.run_folder import read_json
from mpadam.study.text import DataConfig


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
    train_gigabytes: float | None
    validation_gigabytes: float | None
    token_gigabytes: float | None


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
    shards = supply.shards_needed(work.sequences, data) if supply.is_c4(data) else None
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
        gigabytes=None if shards is None else supply.gigabytes(shards).train,
    )


def data_need(
    config: StudyConfig, budgets: Sequence[BudgetNeed], supplied: Supply, manifest: Mapping[str, Any] | None
) -> DataNeed:
    """What the largest of the budgets needs; token files that exist are weighed."""
    shards = max((b.shards for b in budgets if b.shards is not None), default=None)
    weight = None if shards is None else supply.gigabytes(min(shards, C4_EN.train_shards))
    tokens = None if weight is None else weight.tokens
    if manifest is not None:
        tokens = sum(f["bytes"] for shard in manifest["shards"] for f in shard["files"].values()) / 1e9
    return DataNeed(
        source=config.data.source,
        basis=supplied.basis,
        sequences=supplied.sequences,
        epochs=config.data.epochs,
        shards=None if weight is None else weight.shards,
        train_gigabytes=None if weight is None else weight.train,
        validation_gigabytes=None if weight is None else weight.validation,
        token_gigabytes=tokens,
    )


def shortages(config: StudyConfig, budgets: Iterable[BudgetNeed], supplied: Supply) -> list[str]:
    """A line for each budget that the text cannot supply, with the numbers and what to write."""
    found = ((b, supply.shortage(b.sequences, supplied, config.data)) for b in budgets)
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
    shards = supply.shards_needed(sequences, data)
    if shards > C4_EN.train_shards:
        available = supply.sequences_of(C4_EN.train_documents, data)
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
