"""The claims as data: what is claimed, on which cells it is tried, and what would falsify it.

A claim is one file of `claimed/`, an entry of the list that these files make, put together in the order of their names.
They are fixed before any result is looked at, and every report prints the SHA-256 of the whole. All claims are of one
shape: a number of each seed, a linear contrast, is held against a threshold.

    for claim in load_claims(CLAIMS).claims: ...
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from mpadam.study.load import ConfigError, parse_yaml
from mpadam.study.section import Section, first_fault

CLAIMS = Path(__file__).parent / "claimed"


class Term(Section):
    """One optimizer of a contrast: `weight` times its number in the cell, or in the cell of a related regime."""

    optimizer: str
    weight: float
    regime: dict[Literal["masters", "compute", "shadow"], str] = Field(
        default_factory=dict, description="fields in which this regime differs from the cell's, e.g. {masters: fp32}"
    )
    branch: str | None = Field(None, description="of the update, where a quantity is noted of each")


Terms = Annotated[tuple[Term, ...], Field(min_length=1)]


class Premise(Section):
    """A sum of terms that has to be above 0, or a contrast means nothing: a gap to close, a gain to keep."""

    name: str
    terms: Terms


class Contrast(Section):
    """A sum of terms that is large where the claim holds."""

    name: str
    terms: Terms
    premise: Premise | None = None


#: what claims call a format: all of its variants
FAMILIES = {"fp8": ("fp8", "fp8e4m3"), "nvfp4": ("nvfp4", "nvfp4s")}


def family(masters: str) -> tuple[str, ...]:
    return FAMILIES.get(masters, (masters,))


class Where(Section):
    """Which cells of a study: those whose fields are listed; a field left out does not select.

    masters: formats by family.  largest: of the models or budgets that the study has, where it has more than one.
    """

    masters: tuple[str, ...] | None = None
    compute: tuple[str, ...] | None = None
    shadow: tuple[str, ...] = ("none",)
    models: tuple[str, ...] | Literal["largest"] | None = None
    budgets: tuple[int, ...] | Literal["largest"] | None = None


class Perplexity(Section):
    """ln(validation perplexity), paired by seed."""

    kind: Literal["perplexity"]
    where: Where = Where()
    contrasts: Annotated[tuple[Contrast, ...], Field(min_length=1)]


class Trend(Section):
    """Slope of the gain (than - better, in ln perplexity) over families of masters in the order given.

    Its premise is the same slope of `than` alone: that precision costs more as it gets coarser.
    """

    kind: Literal["trend"]
    masters: Annotated[tuple[str, ...], Field(min_length=2)]
    better: str
    than: str


class Probe(Section):
    """A quantity noted during training (`probe_every`): its mean over a run, a number a seed.

    roles: of the weights; all where left out. largest: only magnitudes |w| above which no more than this share of the
    weights lies, and the next lower bin.
    """

    kind: Literal["probe"]
    quantity: str
    roles: tuple[str, ...] | None = None
    largest: Annotated[float, Field(gt=0, le=1)] | None = None
    where: Where = Where()
    contrasts: Annotated[tuple[Contrast, ...], Field(min_length=1)]


class Fitted(Section):
    """A method of the matrix fitting, and how its rates were chosen."""

    method: str
    rates: Literal["best per task", "one for all tasks"]


class FitComparison(Section):
    """ln(error) of `than` less that of `better`; of several, the one with the smallest mean."""

    task: str
    better: Fitted
    than: Annotated[tuple[Fitted, ...], Field(min_length=1)]


class Fit(Section):
    """Final errors of the matrix fitting (Figure 3), paired by matrix."""

    kind: Literal["fit"]
    comparisons: Annotated[tuple[FitComparison, ...], Field(min_length=1)]


class Exact(Section):
    """Something computed without chance, so that it has no seeds: a function of `mpadam.claims.measured`."""

    kind: Literal["exact"]
    measurement: Literal["capabilities", "growth", "sweep_agreement"]
    of: tuple[str, ...] = Field((), description="ids of the claims whose cells sweep_agreement looks at")

    @model_validator(mode="after")
    def _of_a_claim(self) -> Exact:
        if bool(self.of) != (self.measurement == "sweep_agreement"):
            raise ValueError("of: sweep_agreement needs ids of claims, and nothing else takes any")
        return self


class Rates(Section):
    """Width of the region of additive rates whose loss stays within `tolerance` nats of the best, in octaves."""

    kind: Literal["rates"]
    better: str
    than: str
    tolerance: Annotated[float, Field(gt=0)]


Metric = Annotated[Perplexity | Trend | Probe | Fit | Exact | Rates, Field(discriminator="kind")]


def optimizers_of(metric: Metric) -> list[str]:
    """The optimizers' entries that a metric compares, each once; none where it is of no runs."""
    if isinstance(metric, Trend | Rates):
        return [metric.better, metric.than]
    contrasts = metric.contrasts if isinstance(metric, Perplexity | Probe) else ()
    terms = [
        term
        for contrast in contrasts
        for term in (*contrast.terms, *(contrast.premise.terms if contrast.premise else ()))
    ]
    return list(dict.fromkeys(term.optimizer for term in terms))


UNITS = {
    "perplexity": "ln perplexity",
    "trend": "ln perplexity per step of precision",
    "probe": "share",
    "fit": "ln error",
    "exact": "",
    "rates": "octaves",
}


class Claim(Section):
    """One claim or objection, in our words.

    grade: A the authors' own words, Q quoted by a machine referee, D in a machine's summary alone, R our reading.
    direction, threshold: the number is claimed to be above or below the threshold, or within or outside +- it: the
        minimum effect, the smallest difference that would matter. A negative one is a margin that may be lost.
    holds: in every cell, or in any. family: cells that Holm corrects together: all of the claim, or of a contrast.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: str
    statement: str
    source: Literal["paper", "referee", "ours"]
    grade: Literal["A", "Q", "D", "R"]
    metric: Metric
    direction: Literal["above", "below", "within", "outside"]
    threshold: float
    holds: Literal["every", "any"]
    family: Literal["claim", "contrast"]
    falsified_by: str
    note: str = ""
    unit: str | None = None

    @property
    def measured_in(self) -> str:
        return self.unit if self.unit is not None else UNITS[self.metric.kind]

    @model_validator(mode="after")
    def _threshold_fits(self) -> Claim:
        """Two-sided thresholds are positive. Whether the loss fell is counted, one optimizer at a time."""
        if self.direction in ("within", "outside") and self.threshold <= 0:
            raise ValueError(f"claim {self.id}: threshold {self.threshold}: {self.direction} needs one above 0")
        if isinstance(self.metric, Probe) and self.metric.quantity == "loss_fell":
            single = all(len(c.terms) == 1 and c.terms[0].weight == 1 for c in self.metric.contrasts)
            if not single or self.direction not in ("above", "below") or not 0 < self.threshold < 1:
                raise ValueError(
                    f"claim {self.id}: loss_fell is a share of probes: give each contrast one term of weight 1, "
                    "direction above or below, and a threshold between 0 and 1"
                )
        return self


class ClaimsFile(Section):
    """The whole file. alpha: of a family, both directions together."""

    alpha: Annotated[float, Field(gt=0, lt=1)]
    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> ClaimsFile:
        ids = [claim.id for claim in self.claims]
        for name in ids:
            if ids.count(name) > 1:
                raise ValueError(f"claims: id {name!r} occurs twice; give each its own")
        of_runs = [claim.id for claim in self.claims if isinstance(claim.metric, Perplexity)]
        for claim in self.claims:
            for name in claim.metric.of if isinstance(claim.metric, Exact) else ():
                if name not in of_runs:
                    raise ValueError(f"claim {claim.id}: of: {name!r} is not the id of a claim about perplexity")
        return self


@dataclass(frozen=True)
class Claims:
    alpha: float
    claims: tuple[Claim, ...]
    sha256: str


def load_claims(path: Path = CLAIMS) -> Claims:
    """Read and check a file, or the files of a folder. Raises ConfigError, in one line, for the first thing wrong."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    try:
        raw = b"".join(file.read_bytes() for file in files)
        content = ClaimsFile.model_validate(parse_yaml(raw.decode(), str(path)))
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_fault(error)}") from None
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    return Claims(content.alpha, content.claims, hashlib.sha256(raw).hexdigest())
