"""The version of a run's numbers: a part of its specification, hence of its hash.

It is raised for the runs whose numbers a change of the program changes, and so repeats those and no others;
tests/golden tells when that is.

    1    the first
    2    stochastic rounding of FP8 and NVFP4 weights: scales are kept and move by powers of two
"""

from mpadam.numerics.formats import card_of
from mpadam.optim.names import BY_CHANCE, parse_optimizer_name


def numerics_version(masters: str, optimizer: str) -> int:
    """Version of the numbers of a run with masters such as "nvfp4" and an optimizer such as "adamw-sr"."""
    rounds_codes = card_of(masters).codes and parse_optimizer_name(optimizer).write_back in BY_CHANCE
    return 2 if rounds_codes else 1
