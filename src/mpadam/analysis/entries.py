"""What kind of entry an optimizer of a study is, so that each table and figure shows its own.

adamw, m-plus-adam                       the two that the paper's Table 2 and Figure 4 compare
adamw-sr, m-plus-adam-kahan              a write-back other than rounding to nearest: the comparison of write-backs
m-plus-adam-relative, additive-twin      a form: the ablations
m-plus-adam@beta2_0                      a level: one value of m-plus-adam changed: the ablations
"""

from collections.abc import Callable
from dataclasses import replace

from mpadam.analysis.cells import BASELINE
from mpadam.analysis.collect import Collected
from mpadam.optim.names import ERROR_FEEDBACK
from mpadam.study.config import StudyConfig

METHOD = "m-plus-adam"
MAIN = (BASELINE, METHOD)


def is_level(entry: str) -> bool:
    return "@" in entry


def base_of(entry: str) -> str:
    return entry.partition("@")[0]


def axis_of(entry: str) -> str:
    """`beta2` of `m-plus-adam@beta2_0`: what a level is about."""
    return entry.partition("@")[2].rstrip("0123456789").rstrip("_-")


def has_write_back(config: StudyConfig, entry: str) -> bool:
    return config.optimizer_name(entry).write_back != "nearest"


def feeds_back(config: StudyConfig, entry: str) -> bool:
    """Whether what rounding its weights loses is added to the first moment (ECO)."""
    return config.optimizer_name(entry).write_back in ERROR_FEEDBACK


def is_form(config: StudyConfig, entry: str) -> bool:
    """Whether it is another form of M+Adam, or its control, and differs from it in nothing else."""
    name, method = config.optimizer_name(entry), config.optimizer_name(METHOD)
    alike = name.rule in (method.rule, "additive-twin") and name.write_back == method.write_back
    return alike and name != method and not is_level(entry)


def fp32_regime(config: StudyConfig, regime: str) -> str:
    """The regime with fp32 weights and the same compute, its reference; empty where the study has none."""
    compute = config.regimes[regime].compute
    alike = (name for name, other in config.regimes.items() if (other.masters, other.compute) == ("fp32", compute))
    return next(alike, "")


def with_runs(collected: Collected, keep: Callable[[str, str], bool]) -> Collected:
    pairs = zip(collected.runs["regime"], collected.runs["optimizer"], strict=True)
    return replace(collected, runs=collected.runs[[keep(*pair) for pair in pairs]])


def without_levels(collected: Collected) -> Collected:
    """The study without the levels of ablations, which have a table and a figure of their own."""
    return with_runs(collected, lambda _, optimizer: not is_level(optimizer))


def main_entries(collected: Collected) -> Collected:
    """AdamW and M+Adam alone; the study as it is, but for levels, where it has neither."""
    if not set(MAIN) & set(collected.runs["optimizer"]):
        return without_levels(collected)
    return with_runs(collected, lambda _, optimizer: optimizer in MAIN)
