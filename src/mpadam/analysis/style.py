"""One map of names, order and looks, so that an optimizer or a regime is the same thing in every table and figure.

An optimizer has a colour (Okabe and Ito's, which colour-blind readers tell apart) and a marker; a regime has a dash. So
lines stay apart in print, in grey, and for everybody. What is not listed keeps its own name and takes the next spare
look, in the order in which the study declares it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, product

BLACK, GREY = "#000000", "#777777"
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
VERMILLION, ORANGE, PURPLE = "#D55E00", "#E69F00", "#CC79A7"

Dash = str | tuple[float, tuple[float, ...]]

COLOURS = (GREEN, PURPLE, ORANGE, SKY, BLACK, BLUE, VERMILLION, GREY)
_SPARE_DASHES: tuple[Dash, ...] = ((0, (2, 2)), (0, (5, 1)), (0, (2, 1, 1, 1)), (0, (9, 3)))


@dataclass(frozen=True)
class OptimizerStyle:
    label: str
    colour: str
    marker: str


@dataclass(frozen=True)
class RegimeStyle:
    label: str
    dash: Dash


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
#: weights-compute; the reference with fp32 masters first
REGIMES = {
    "fp32-bf16": RegimeStyle("fp32-bf16", (0, (1, 1.5))),
    "fp32-fp8": RegimeStyle("fp32-fp8", (0, (1, 3))),
    "bf16-bf16": RegimeStyle("bf16-bf16", "-"),
    "bf16-fp8": RegimeStyle("bf16-fp8", (0, (6, 2))),
    "fp8-bf16": RegimeStyle("fp8-bf16", (0, (4, 1.5, 1, 1.5))),
    "fp8-fp8": RegimeStyle("fp8-fp8", (0, (8, 2, 1, 2))),
    "fp8e4m3-bf16": RegimeStyle("fp8e4m3-bf16", (0, (4, 1.5, 1, 1.5, 1, 1.5))),
    "fp8e4m3-fp8": RegimeStyle("fp8e4m3-fp8", (0, (8, 2, 1, 2, 1, 2))),
    "nvfp4-bf16": RegimeStyle("nvfp4-bf16", (0, (3, 1, 1, 1, 1, 1))),
    "nvfp4-fp8": RegimeStyle("nvfp4-fp8", (0, (6, 1, 1, 1, 1, 1))),
    "nvfp4s-bf16": RegimeStyle("nvfp4s-bf16", (0, (3, 1, 1, 1))),
    "nvfp4s-fp8": RegimeStyle("nvfp4s-fp8", (0, (6, 1, 1, 1))),
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
    """Looks of these entries, in the order to show them."""
    wanted = list(dict.fromkeys(entries))
    styles = {name: style for name, style in OPTIMIZERS.items() if name in wanted}
    taken = {(style.marker, style.colour) for style in OPTIMIZERS.values()}
    spare = cycle(look for look in product("dH8o^sDvp", COLOURS) if look not in taken)
    for name in wanted:
        if name not in styles:
            marker, colour = next(spare)
            styles[name] = OptimizerStyle(name, colour, marker)
    return styles


def regime_styles(regimes: Iterable[str]) -> dict[str, RegimeStyle]:
    """Looks of these regimes, in the order to show them."""
    wanted = list(dict.fromkeys(regimes))
    styles = {name: style for name, style in REGIMES.items() if name in wanted}
    spare = cycle(_SPARE_DASHES)
    for name in wanted:
        if name not in styles:
            styles[name] = RegimeStyle(name, next(spare))
    return styles
