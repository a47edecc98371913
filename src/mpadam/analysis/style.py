"""One map of names, order and styles, so that an optimizer or a regime is the same thing in every table and figure.

An optimizer has a colour (Okabe and Ito's, which colour-blind readers tell apart) and a marker; a regime has a dash. So
lines stay apart in print, in grey, and for everybody. What is not listed keeps its own name and takes the next spare
style, in the order in which the study declares it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle, product
from typing import TypeVar

BLACK, GREY = "#000000", "#777777"
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
VERMILLION, ORANGE, PURPLE = "#D55E00", "#E69F00", "#CC79A7"

Dash = str | tuple[float, tuple[float, ...]]
Style = TypeVar("Style")

COLOURS = (GREEN, PURPLE, ORANGE, SKY, BLACK, BLUE, VERMILLION, GREY)
_SPARE_DASHES: tuple[Dash, ...] = ((0, (2, 2)), (0, (5, 1)), (0, (2, 1, 1, 1)), (0, (9, 3)))


@dataclass(frozen=True)
class OptimizerStyle:
    label: str
    colour: str
    marker: str


#: in the order of legends and tables
OPTIMIZERS = {
    "adamw": OptimizerStyle("AdamW", BLUE, "o"),
    "adamw@betas0": OptimizerStyle("AdamW, customary betas", GREEN, "H"),
    "adamw-sr": OptimizerStyle("AdamW + SR", SKY, "s"),
    "adamw-kahan": OptimizerStyle("AdamW + Kahan", GREEN, "D"),
    "adamw-eco": OptimizerStyle("AdamW + ECO", BLACK, "8"),
    "adamw-eco-sr": OptimizerStyle("AdamW + ECO + SR", GREY, "d"),
    "madam": OptimizerStyle("Madam", BLACK, "P"),
    "m-plus-adam": OptimizerStyle("M+Adam", VERMILLION, "^"),
    "m-plus-adam-sr": OptimizerStyle("M+Adam + SR", ORANGE, "v"),
    "m-plus-adam-kahan": OptimizerStyle("M+Adam + Kahan", PURPLE, "p"),
    "m-plus-adam-relative": OptimizerStyle("M+Adam, relative", VERMILLION, "<"),
    "m-plus-adam-rho-tensor": OptimizerStyle("M+Adam, rho per tensor", ORANGE, ">"),
    "m-plus-adam-unnormalized": OptimizerStyle("M+Adam, unnormalized", PURPLE, "h"),
    "m-plus-adam-apollo-e": OptimizerStyle("M+Adam, Apollo-E", GREEN, "*"),
    "additive-twin": OptimizerStyle("Additive twin", GREY, "X"),
}
#: weights-compute -> dash; the reference with fp32 masters first
REGIMES: dict[str, Dash] = {
    "fp32-bf16": (0, (1, 1.5)),
    "fp32-fp8": (0, (1, 3)),
    "bf16-bf16": "-",
    "bf16-fp8": (0, (6, 2)),
    "fp8-bf16": (0, (4, 1.5, 1, 1.5)),
    "fp8-fp8": (0, (8, 2, 1, 2)),
    "fp8e4m3-bf16": (0, (4, 1.5, 1, 1.5, 1, 1.5)),
    "fp8e4m3-fp8": (0, (8, 2, 1, 2, 1, 2)),
    "nvfp4-bf16": (0, (3, 1, 1, 1, 1, 1)),
    "nvfp4-fp8": (0, (6, 1, 1, 1, 1, 1)),
    "nvfp4s-bf16": (0, (3, 1, 1, 1)),
    "nvfp4s-fp8": (0, (6, 1, 1, 1)),
}
#: of hyper-parameters, on axes: the paper's symbols
SYMBOLS = {
    "lr": r"$\eta_a$",
    "lr_mult": r"$\eta_m$",
    "beta1": r"$\beta_1$",
    "beta2": r"$\beta_2$",
    "eps": r"$\epsilon$",
    "weight_decay": r"weight decay, times $\eta_a$",
    "weight_decay_mult": r"weight decay, times $\eta_m$",
    "tau": r"$\tau$",
    "max_relative_step": r"clip $r_{max}$",
    "block_scale_exponent": r"$\eta_m$ by block scale, to the power",
    "warmup": "warm-up, share of steps",
}


def optimizer_styles(entries: Iterable[str]) -> dict[str, OptimizerStyle]:
    """Styles of these entries, in the order to show them."""
    taken = {(style.marker, style.colour) for style in OPTIMIZERS.values()}
    spare = cycle(pair for pair in product("dH8o^sDvp", COLOURS) if pair not in taken)

    def new(name: str) -> OptimizerStyle:
        marker, colour = next(spare)
        return OptimizerStyle(name, colour, marker)

    return _in_order(entries, OPTIMIZERS, new)


def regime_styles(regimes: Iterable[str]) -> dict[str, Dash]:
    """Dashes of these regimes, in the order to show them."""
    spare = cycle(_SPARE_DASHES)
    return _in_order(regimes, REGIMES, lambda _: next(spare))


def _in_order(names: Iterable[str], known: Mapping[str, Style], new: Callable[[str], Style]) -> dict[str, Style]:
    """Known names in their own order, then the others in that of `names`."""
    wanted = list(dict.fromkeys(names))
    found = {name: style for name, style in known.items() if name in wanted}
    return found | {name: new(name) for name in wanted if name not in found}
