"""What was run, in a reader's words: text, models, training, tuning."""

import math
from typing import Any

from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import is_level
from mpadam.analysis.style import optimizer_styles, regime_styles
from mpadam.study.config import StudyConfig

_SOURCES = {
    "builtin": "docstrings of installed Python packages (English prose, for seeing the pipeline work)",
    "c4_folder": "a local folder in C4's layout",
    "c4_hub": "C4 (allenai/c4, en) from the hub",
    "saved_dataset": "datasets saved to disk",
}
#: the same in a word
TEXTS = {
    "builtin": "docstrings of Python packages",
    "c4_folder": "C4",
    "c4_hub": "C4",
    "saved_dataset": "saved datasets",
}
_SEQUENCES = {"pack": "documents end to end", "truncate_pad": "a document each, cut or padded"}


#: a term and what is said of it
Fact = tuple[str, str]


def facts(collected: Collected) -> list[Fact]:
    config, manifest = collected.config, collected.manifest
    return [
        ("Text", _SOURCES[config.data.source]),
        *([] if manifest is None else _sizes(manifest)),
        ("Sequences", f"{config.data.sequence_length} tokens, {_SEQUENCES[config.data.sequences]}"),
        ("Budgets", ", ".join(f"{budget}x" for budget in _used(collected, "budget"))),
        (
            "Regimes",
            ", ".join(regime_styles(_used(collected, "regime")))
            + " (how weights are stored, then what multiplies them)",
        ),
        ("Optimizers", _optimizers(collected)),
        ("Seeds", ", ".join(map(str, _used(collected, "seed")))),
        ("Batch", f"{config.training.global_batch_size} sequences per update, on {config.training.device}"),
        ("Tuning", _tuning(config)),
    ]


def _used(collected: Collected, column: str) -> list[Any]:
    return list(collected.runs[column].unique())


def _sizes(manifest: dict[str, Any]) -> list[Fact]:
    train, validation, entropy = manifest["train"], manifest["validation"], manifest["unigram_entropy"]
    return [
        ("Training text", f"{train['documents']:,} documents, {train['tokens']:,} tokens"),
        (
            "Validation text",
            f"{validation['documents']:,} documents, none of them in the training text; reported on "
            f"{manifest['validation_set']['report']['target_tokens']:,} tokens, rates chosen on another half",
        ),
        ("Vocabulary", f"{manifest['vocab_size']:,} tokens"),
        (
            "Yardstick",
            f"guessing by the frequency of tokens alone: perplexity {math.exp(entropy):.1f} ({entropy:.3f} nats a "
            "token, the unigram entropy of the validation text)",
        ),
    ]


def _optimizers(collected: Collected) -> str:
    used = _used(collected, "optimizer")
    levels = sum(map(is_level, used))
    entries = optimizer_styles(entry for entry in used if not is_level(entry))
    names = {entry: str(collected.config.optimizer_name(entry)) for entry in entries}
    named = ", ".join(
        f"{style.label} ({entry if names[entry] == entry else f'{entry}: {names[entry]}'})"
        for entry, style in entries.items()
    )
    return f"{named}; and {levels} with one value changed, for the ablations" if levels else named


def _tuning(config: StudyConfig) -> str:
    if config.tuning.mode == "fixed":
        return "none: the study gives all values"
    share = config.tuning.steps_fraction
    length = "" if share == 1 else f", each {share:.0%} of a run"
    further = f", and up to {config.tuning.extend} further ones around the best" if config.tuning.extend else ""
    trials = f"{config.tuning.trials} trials for every optimizer, model and regime{further}"
    return f"{trials}{length}, on seed {config.tuning.seed}"


def model_facts(collected: Collected) -> list[tuple[str, ...]]:
    """Name, parameters, shape, steps and positions at budget 1 of the models that the study trains; ? where it depends
    on a vocabulary that is not known yet."""
    config, size = collected.config, collected.vocabulary
    batch = config.training.global_batch_size * config.data.sequence_length
    found: list[tuple[str, ...]] = []
    for name in _used(collected, "model"):
        model = config.models[name]
        shape = f"{model.layers} layers, width {model.hidden_size}, {model.heads} heads"
        if size is None:
            found.append((name, "?", shape, "?", "?"))
            continue
        steps = collected.updates(name, 1)
        found.append((name, f"{model.parameters(size):,}", shape, f"{steps:,}", f"{steps * batch:,}"))
    return found
