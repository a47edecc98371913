"""What was run, in a reader's words: text, models, training, tuning. And the paper's own numbers, with their grade,
next to those of the study's runs where they measure the same thing.

A study at another scale has nothing to set next to them but the direction of its own differences, and that is what it
shows.
"""

import math
from dataclasses import dataclass
from typing import Any

from mpadam.analysis.cells import BASELINE, Cell, CellKey, cells
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD, is_level
from mpadam.analysis.style import optimizer_styles, regime_styles
from mpadam.analysis.texts import gain_text, perplexity_text
from mpadam.claims.reported import BUDGET, REPORTED, Line, same_model
from mpadam.site.gains import with_interval
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
            f"guessing by the frequency of tokens alone: perplexity {math.exp(entropy):.1f} ({entropy:.3f} nats per "
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


# --- the paper's numbers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A line of the paper and what this study has. A cell without runs of that model is None.

    direction: which way the gains of this study's other cells in the same regime point.
    """

    reported: Line
    adamw: tuple[str, str] | None
    m_plus_adam: tuple[str, str] | None
    gain: tuple[str, str] | None
    direction: str


def next_to_the_paper(collected: Collected) -> list[Comparison]:
    found = {cell.key: cell for cell in cells(collected.runs)}
    return [_compared(collected, reported, found) for reported in REPORTED]


def _compared(collected: Collected, reported: Line, found: dict[CellKey, Cell]) -> Comparison:
    same = same_model(collected, reported.model)
    adamw, method = (
        found.get(CellKey(reported.model, BUDGET, reported.regime, entry)) if same else None
        for entry in (BASELINE, METHOD)
    )
    than = CellKey(reported.model, BUDGET, reported.regime, BASELINE)
    return Comparison(
        reported,
        (perplexity_text(adamw), adamw.key.folder) if adamw else None,
        (perplexity_text(method), method.key.folder) if method else None,
        (with_interval(found, than, method.key, gain_text(method)), method.key.folder) if method else None,
        _direction([cell for cell in found.values() if cell is not method], reported.regime),
    )


def _direction(found: list[Cell], regime: str) -> str:
    asked = [cell for cell in found if (cell.key.regime, cell.key.optimizer) == (regime, METHOD)]
    gains = [cell.gain.mean for cell in asked if cell.gain is not None]
    if not asked:
        return "none of its cells"
    if not gains:
        return "no pair of runs yet"
    return f"lower in {sum(gain > 0 for gain in gains)} of {len(gains)}"
