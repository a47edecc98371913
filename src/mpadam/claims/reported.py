"""The paper's own numbers, with their grade, and whether a study has the model that they are about.

Perplexities as a referee's report quotes them (grade Q): the paper itself was not at hand. Best of a sweep, one seed;
the budget is not stated, and 1x is our reading.
"""

import math
from dataclasses import dataclass

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import METHOD
from mpadam.claims.cells import Slot
from mpadam.claims.samples import Reported

#: parameters of the paper's models; a model of that name with other sizes is another model
PARAMETERS = {"350m": 367_970_000}
BUDGET = 1
#: parameters of the smallest model of the paper (60m)
PAPER_SCALE = 58_000_000
_TOLERANCE = 0.1  # of a size: vocabularies differ


@dataclass(frozen=True)
class Line:
    model: str
    regime: str
    adamw: float
    m_plus_adam: float
    grade: str = "Q"

    @property
    def gain(self) -> float:
        return 1 - self.m_plus_adam / self.adamw


REPORTED = (
    Line("350m", "bf16-bf16", 19.156, 16.607),
    Line("350m", "fp8-fp8", 21.674, 19.395),
    Line("350m", "nvfp4-fp8", 24.941, 20.796),
)


def same_model(collected: Collected, name: str) -> bool:
    """Whether the study has the paper's model of that name, to a tenth of its size."""
    config, size = collected.config, collected.vocabulary
    if name not in config.models or size is None or name not in PARAMETERS:
        return False
    return abs(config.models[name].parameters(size) / PARAMETERS[name] - 1) < _TOLERANCE


def below_paper_scale(collected: Collected) -> bool:
    """Whether every model of the study is smaller than the paper's smallest, by more than a tenth of its size."""
    size = collected.vocabulary
    models = [collected.config.models[name] for name in collected.runs["model"].unique()]
    return size is not None and all(model.parameters(size) < (1 - _TOLERANCE) * PAPER_SCALE for model in models)


def reported_for(slot: Slot, collected: Collected) -> Reported | None:
    """The paper's number for a contrast of AdamW and M+Adam alone, in a cell that the paper has at the same scale."""
    if {source.cell.optimizer for source, _ in slot.terms} != {BASELINE, METHOD} or slot.budget != BUDGET:
        return None
    lines = {line.regime: line for line in REPORTED if line.model == slot.model}
    if not same_model(collected, slot.model) or any(source.cell.regime not in lines for source, _ in slot.terms):
        return None
    ppl = {BASELINE: "adamw", METHOD: "m_plus_adam"}
    value = math.fsum(w * math.log(getattr(lines[s.cell.regime], ppl[s.cell.optimizer])) for s, w in slot.terms)
    own = lines.get(slot.regime)
    return Reported(own.adamw, own.m_plus_adam, value, own.grade) if own else None


def learned_nothing(collected: Collected) -> float | None:
    """Loss of a model that knows its vocabulary alone, nats per token; None where the vocabulary is unknown."""
    size = collected.vocabulary
    return None if size is None else math.log(size)
