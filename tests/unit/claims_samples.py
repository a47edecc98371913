"""Cells of claims with made-up numbers, and made-up studies whose perplexities a test decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from analysis_fakes import FakeStudy, fake_study, study_content

from mpadam.analysis.collect import collect
from mpadam.claims.data import Claim, load_claims
from mpadam.claims.examine import Verdicts, examine
from mpadam.claims.samples import ClaimCell
from mpadam.claims.verdicts import Judged

CONTRAST = {"name": "B over A", "terms": [{"optimizer": "a", "weight": 1}, {"optimizer": "b", "weight": -1}]}


def claim(**changes: Any) -> Claim:
    """A claim that a number is above 0.005 in every cell."""
    content = {
        **{"id": "x", "title": "B beats A", "statement": "B beats A.", "source": "ours", "grade": "R"},
        "metric": {"kind": "perplexity", "contrasts": [CONTRAST]},
        **{"direction": "above", "threshold": 0.005, "holds": "every", "family": "claim", "falsified_by": "A better"},
    }
    return Claim.model_validate({**content, **changes})


def cell(values: Iterable[float], **changes: Any) -> ClaimCell:
    """A cell with these numbers, one per seed, of which none is missing."""
    numbers = dict(enumerate(values))
    return ClaimCell(**{"contrast": "c", "where": "here", "values": numbers, "asked": tuple(numbers), **changes})


_RATES = {"search": {"lr": [1e-3, 3e-3, 1e-2]}}
_MULT = {"values": {"lr_mult": 4e-3}, **_RATES}
TAKES = ("m-plus-adam-sr", "m-plus-adam-apollo-e", "additive-twin")
CLAIMS_STUDY: dict[str, Any] = {
    "models": {"tiny": study_content()["models"]["tiny"]},
    "budgets": [1],
    "regimes": {
        **{f"{m}-bf16": {"masters": m, "compute": "bf16"} for m in ("fp32", "bf16", "fp8", "nvfp4", "nvfp4s")},
        "fp8-bf16-kept": {"masters": "fp8", "compute": "bf16", "shadow": "persistent"},
    },
    "optimizers": {"adamw": _RATES, "m-plus-adam": _MULT, "adamw-sr": _RATES, **{entry: {} for entry in TAKES}},
    "seeds": [0, 1, 2, 3, 4],
    "tuning": {"mode": "search", "trials": 3, "transfer": {"optimizers": dict.fromkeys(TAKES, "m-plus-adam")}},
    "grids": [
        {"name": "main", "optimizers": ["adamw", "m-plus-adam"]},
        {"name": "rest", "regimes": ["bf16-bf16"], "optimizers": ["adamw-sr", *TAKES]},
    ],
}


def claims_study(results: Path, **changes: Any) -> FakeStudy:
    """One model, five ways to keep weights and a shadow, five seeds; best rates inside their ranges."""
    return fake_study(results, **{**CLAIMS_STUDY, **changes})


def give(study: FakeStudy, values: Mapping[int, float], **labels: Any) -> None:
    """Set ln(perplexity) of a cell, seed by seed."""
    for seed, value in values.items():
        study.edit_summary({"val_loss": value, "val_ppl": math.exp(value)}, **{**labels, "seed": seed})


def verdicts(study: FakeStudy, *, pooled: bool = False) -> Verdicts:
    """All claims judged on the study, with diagnostics where the command leaves them."""
    diagnostics = study.paths.output / "diagnostics"
    return examine(collect(study.config, study.paths), _claims(), diagnostics=diagnostics, pooled=pooled)


_claims = cache(load_claims)


def judged(study: FakeStudy, name: str) -> Judged:
    """One claim of the file, judged."""
    return next(one for one in verdicts(study).judged if one.claim.id == name)


PLACE: dict[str, Any] = {"model": "tiny", "budget": 1, "regime": "bf16-bf16"}
WIGGLE = (0.0, 0.002, -0.001, 0.001, -0.002)


def gained_study(results: Path) -> FakeStudy:
    """AdamW at ln(perplexity) 4.0 everywhere, M+Adam 0.05 below; a seed moves both alike, and each a bit by itself."""
    study = claims_study(results)
    for regime in study.config.regimes:
        for entry, level in (("adamw", 4.0), ("m-plus-adam", 3.95)):
            sign = 1 if entry == "adamw" else -0.5
            values = {seed: level + 0.1 * seed + sign * noise for seed, noise in enumerate(WIGGLE)}
            give(study, values, **{**PLACE, "regime": regime, "optimizer": entry})
    return study


def raise_cost(study: FakeStudy, by: Mapping[str, float], noise: float = 1.0) -> None:
    """AdamW's ln(perplexity) in some regimes, above the 4.0 that it has with fp32 weights."""
    for regime, cost in by.items():
        values = {seed: 4.0 + cost + 0.1 * seed + (1 + noise) * bit for seed, bit in enumerate(WIGGLE)}
        give(study, values, **{**PLACE, "regime": regime, "optimizer": "adamw"})


def cell_of(study: FakeStudy, name: str, regime: str = "bf16-bf16", contrast: str | None = None) -> ClaimCell:
    """The cell of a claim in a regime."""
    (found,) = [one for one in judged(study, name).cells if one.regime == regime and contrast in (None, one.contrast)]
    return found
