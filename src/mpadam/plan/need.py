"""How much of C4 a study needs, from its configuration alone, before anything is fetched."""

from __future__ import annotations

from mpadam.plan.assumptions import C4_EN, VOCABULARY
from mpadam.plan.supply import sequences_of, shards_needed
from mpadam.study.config import StudyConfig
from mpadam.study.grid import run_keys, tuning_keys
from mpadam.study.load import ConfigError
from mpadam.study.text import DataConfig


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
    fraction = study.tuning.steps_fraction
    trainings = {(key.model, key.budget, 1.0) for key in run_keys(study)}
    trainings |= {(key.model, study.tuning.budget, fraction) for key in tuning_keys(study)}
    return max(_sequences(study, *training) for training in trainings)


def _sequences(study: StudyConfig, model: str, budget: int, fraction: float) -> int:
    batch = study.training.global_batch_size
    steps = study.models[model].steps(
        budget,
        vocab_size=study.tokenizer.vocab_size or VOCABULARY,
        positions_per_step=batch * study.data.sequence_length,
    )
    return round(steps * fraction) * batch
