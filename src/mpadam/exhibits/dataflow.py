"""Dtypes and formats that an instrumented training step used (the paper's Figures 7 to 9: bf16; bf16 with FP8
products; FP8 weights with FP8 products). Drawn from what hooks saw, not from the configuration.
"""

from typing import Any

from matplotlib.axes import Axes

from mpadam.analysis.style import optimizer_styles
from mpadam.exhibits.kit.diagram import FILLS, arrow, bits_of, box, canvas, note, precision_key
from mpadam.exhibits.kit.pictures import Picture
from mpadam.exhibits.source import Source

NAME = "{figure}"
TITLE = "Dtypes of a training step, {figure} of the paper"
NEEDS = "diagnostics/dataflow"
PLACE = 160
CHECKED = {"diagnostics/dataflow/{figure}.json": ()}

#: a `Trace` of `mpadam.diagnostics.dataflow` as a record, and its parts: what was seen of a tensor, a matrix product
Trace = dict[str, Any]
Seen = dict[str, str]
Product = dict[str, Any]

WIDTH, HEIGHT = 9.6, 7.7
_LONG = {
    "X": "input X",
    "W": "weight W",
    "Y": "output Y",
    "dY": "output gradient dY",
    "dX": "input gradient dX",
    "dW": "weight gradient dW",
}
_RESULT = {"forward": "Y", "input gradient": "dX", "weight gradient": "dW"}
_EQUATION = {"forward": "Y = X Wᵀ", "input gradient": "dX = dY W", "weight gradient": "dW = dYᵀ X"}
_ROWS = {"forward": 6.45, "input gradient": 4.95, "weight gradient": 3.45}
_LEFT, _CAST, _OPERATION, _RIGHT = 1.95, 4.05, 5.95, 8.1  # x of the columns
_APART = 0.33  # of two operands, from the middle of their row


def make(source: Source, figure: str) -> Picture:
    trace = source.record(f"{NEEDS}/{figure}.json")
    return dataflow_picture(figure, f"{trace['regime']['masters']}-{trace['regime']['compute']}", trace)


def dataflow_picture(name: str, regime: str, trace: Trace) -> Picture:
    figure, axes = canvas(WIDTH, HEIGHT)
    for x, title in ((_LEFT, "in"), (_CAST, "as multiplied"), (_OPERATION, "operation"), (_RIGHT, "out")):
        note(axes, (x, HEIGHT - 0.35), title, bold=True)
    used = set()
    for kind, y in _ROWS.items():
        used |= _product_row(axes, y, kind, trace["products"][kind], trace)
    used |= _update_rows(axes, trace)
    precision_key(axes, (0.25, 0.25), used)
    others = ", ".join(f"{role} {fmt}" for role, fmt in trace["others"].items())
    note(axes, (4.2, 0.25), f"stored outside the projections: {others}", ha="left")
    number = name.removeprefix("figure")
    return Picture(
        name,
        f"Dtypes of a training step, {regime} (Figure {number} of the paper)",
        figure,
        _caption(regime, trace),
        _alt(trace),
    )


def _product_row(axes: Axes, y: float, kind: str, product: Product, trace: Trace) -> set[int]:
    note(axes, (0.25, y), kind.replace(" ", "\n"), ha="left", bold=True)
    used = set()
    for (name, operand), at in zip((product["left"], product["right"]), (y + _APART, y - _APART), strict=True):
        source = trace["tensors"][name]
        used |= _seen(axes, (_LEFT, at), _LONG[name], source, width=1.95)
        used |= _seen(axes, (_CAST, at), f"{name}", operand, width=1.5)
        cast = operand["values"] != source["dtype"]
        arrow(axes, (_LEFT + 0.975, at), (_CAST - 0.75, at), dash="-" if cast else ":")
        if cast:
            note(axes, ((_LEFT + _CAST) / 2 + 0.11, at + 0.11), "cast")
        arrow(axes, (_CAST + 0.75, at), (_OPERATION - 0.62, y + (at - y) * 0.25))
    box(axes, (_OPERATION, y), f"{_EQUATION[kind]}\nsums {trace['sums']}", width=1.25, height=0.62, round_=True)
    result = _RESULT[kind]
    arrow(axes, (_OPERATION + 0.625, y), (_RIGHT - 1.0, y))
    if product["result"] != trace["tensors"][result]["dtype"]:
        note(axes, (_OPERATION + 0.84, y + 0.12), product["result"])
    return used | _seen(axes, (_RIGHT, y), _LONG[result], trace["tensors"][result], width=2.0)


def _update_rows(axes: Axes, trace: Trace) -> set[int]:
    """States, gradient and stored weight go in; the stored weight and the compute copy come out."""
    note(axes, (0.25, 1.6), "update", ha="left", bold=True)
    used = {32} if trace["arithmetic"] == "fp32" else set()
    dtypes = set(trace["states"].values())
    states = ", ".join(trace["states"]) + "\n" + " and ".join(sorted(dtypes)) if trace["states"] else "no states"
    used |= _seen(axes, (_LEFT, 2.2), "gradient", trace["gradient"], width=1.95)
    width = min((bits_of(dtype) for dtype in dtypes), default=32)
    box(axes, (_LEFT, 1.6), states, width=1.95, fill=FILLS[width])
    stored, fill = _stored_text(trace), FILLS[bits_of(trace["store"]["format"])]
    box(axes, (_LEFT, 1.0), stored, width=1.95, fill=fill)
    label = optimizer_styles([trace["optimizer"]])[trace["optimizer"]].label
    box(axes, (_CAST + 0.1, 1.6), f"{label}\nin {trace['arithmetic']}", width=1.5, height=0.62, round_=True)
    for y in (2.2, 1.6, 1.0):
        arrow(axes, (_LEFT + 0.975, y), (_CAST - 0.65, 1.6 + (y - 1.6) * 0.25))
    rounding = f"write back:\n{trace['store']['write_back']}"
    if trace["store"]["shadow"] != "none":
        rounding += f"\n{trace['store']['shadow']} shadow"
    box(axes, (_OPERATION, 1.6), rounding, width=1.25, height=0.62, round_=True)
    arrow(axes, (_CAST + 0.85, 1.6), (_OPERATION - 0.625, 1.6))
    box(axes, (_RIGHT, 1.6 + _APART), stored, width=2.0, fill=fill)
    arrow(axes, (_OPERATION + 0.625, 1.66), (_RIGHT - 1.0, 1.6 + _APART))
    used |= {width, bits_of(trace["store"]["format"])}
    if len(trace["stored"]) == 1 and trace["store"]["format"] == trace["tensors"]["W"]["dtype"]:
        note(axes, (_RIGHT, 1.6 - _APART), "the parameter is the stored weight")
        return used
    used |= _seen(axes, (_RIGHT, 1.6 - _APART), "W, the next compute copy", trace["tensors"]["W"], width=2.0)
    arrow(axes, (_RIGHT, 1.6 + _APART - 0.25), (_RIGHT, 1.6 - _APART + 0.25))
    return used


def _seen(axes: Axes, at: tuple[float, float], label: str, seen: Seen, *, width: float) -> set[int]:
    """A tensor: its format, and what it is held in where that is another; returns the bits of its fill."""
    text, bits = seen_text(seen), bits_of(seen["dtype"])
    if seen["values"] in ("e4m3", "e5m2") and label in ("X", "W", "dY"):
        bits = 8  # as multiplied: what counts is what the values are
    box(axes, at, f"{label}\n{text}", width=width, fill=FILLS[bits])
    return {bits}


def seen_text(seen: Seen) -> str:
    """`bf16`, or `e4m3, held in bf16` where the values are coarser than the dtype."""
    return seen["dtype"] if seen["values"] == seen["dtype"] else f"{seen['values']}, held in {seen['dtype']}"


def _stored_text(trace: Trace) -> str:
    """`stored weight: fp8_e5m2`, then what it consists of, two parts a line; nothing more where it is a plain dtype."""
    parts = [
        f"{name.replace('_', ' ')} {dtype}"
        for name, dtype in trace["stored"].items()
        if name != "codes" or dtype == "uint8"
    ]
    lines = [", ".join(parts[k : k + 2]) for k in range(0, len(parts), 2)]
    return "\n".join([f"stored weight: {trace['store']['format']}", *lines])


def _caption(regime: str, trace: Trace) -> str:
    held = any(p["left"][1]["values"] != p["left"][1]["dtype"] for p in trace["products"].values())
    return (
        f"Dtypes and formats that one training step of a tiny LLaMA in {regime} used, for {trace['layer']}, as hooks "
        "and the optimizer's observer saw them; nothing is copied from the configuration. Solid arrows marked cast "
        "change the format on the way into a product, dotted ones do not. "
        + ("FP8 products are emulated here: their operands are FP8 values held in bf16. " if held else "")
        + "See what is kept between two steps (the stored weight and the states, bottom left), and where fewer than 16 "
        "bits are used."
    )


def _alt(trace: Trace) -> str:
    rows = []
    for kind, product in trace["products"].items():
        left, right = (f"{name} as {seen['values']}" for name, seen in (product["left"], product["right"]))
        rows.append(f"{kind}: {left} times {right}, sums {trace['sums']}, result {product['result']}")
    states = ", ".join(f"{name} {dtype}" for name, dtype in trace["states"].items())
    stored = ", ".join(f"{name} {dtype}" for name, dtype in trace["stored"].items())
    return (
        f"Diagram in rows. {'; '.join(rows)}. Update in {trace['arithmetic']} from the gradient "
        f"({seen_text(trace['gradient'])}), states ({states}) and the weight stored as {trace['store']['format']} "
        f"({stored}), written back by rounding: {trace['store']['write_back']}."
    )
