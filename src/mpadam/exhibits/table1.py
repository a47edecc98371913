"""Table 1 of the paper as measured values, and the same for every write-back."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mpadam.analysis.style import optimizer_styles
from mpadam.analysis.tables import Entry, Table, number_text
from mpadam.diagnostics.capabilities.measure import Capability
from mpadam.diagnostics.options import Capabilities

_MEASURED = ("leaves zero", "changes sign", "small grows", "lost below |w|", "lost from |w|", "lost between")
_PAPER = (
    "The paper's Table 1 has ticks: Adam escapes zero but gives no update at large |w|, Madam the reverse, M+Adam both."
)


def table1(options: Capabilities, found: Sequence[Capability]) -> Table:
    """Rounding to nearest, as in the paper: a row a format and optimizer."""
    shown = [c for c in found if c.write_back == "nearest"]
    labels = _labels(options)
    return Table(
        name="table1",
        title="What an update can do, measured (Table 1 of the paper)",
        caption=f"{_caption(options)} Weights are rounded to nearest. {_PAPER}",
        header=("format", "optimizer", *_MEASURED),
        rows=tuple(_row((c.fmt, labels[c.optimizer]), c, options) for c in shown),
        headings=2,
        data=tidy(shown),
        notes=_notes(options),
    )


def write_back_table(options: Capabilities, found: Sequence[Capability]) -> Table:
    """Every write-back: a row a format, optimizer and write-back."""
    labels = _labels(options)
    return Table(
        name="table1-write-backs",
        title="What an update can do with each write-back, measured",
        caption=(
            f"{_caption(options)} nearest: rounding to nearest; stochastic: half of {options.copies} weights must have "
            "moved; kahan: what rounding lost is carried in bf16 and added to the next step."
        ),
        header=("format", "optimizer", "write-back", *_MEASURED),
        rows=tuple(_row((c.fmt, labels[c.optimizer], c.write_back), c, options) for c in found),
        headings=3,
        data=tidy(found),
        notes=(
            *_notes(options),
            "Stochastic rounding moves a weight as far as intended on average, however large it is; lost means here "
            f"that it usually waits for more than {options.updates} updates. In NVFP4 a weight that sets its block's "
            "scale also moves because the block is scaled anew.",
        ),
    )


def tidy(found: Sequence[Capability]) -> pd.DataFrame:
    """A row a combination; empty where a task was not done within the limit, or no edge was found."""
    return pd.DataFrame(
        [
            {
                "format": c.fmt,
                "optimizer": c.optimizer,
                "write_back": c.write_back,
                "updates_to_leave_zero": c.zero,
                "updates_to_change_sign": c.sign,
                "updates_to_grow": c.small,
                "lost_below": c.edges.below,
                "lost_from": c.edges.above,
                "lost_everywhere": c.edges.everywhere,
                "lost_between_share": round(c.edges.gaps, 3),
            }
            for c in found
        ]
    ).astype({f"updates_to_{task}": "Int64" for task in ("leave_zero", "change_sign", "grow")})


def _labels(options: Capabilities) -> dict[str, str]:
    return {name: style.label for name, style in optimizer_styles(options.optimizers).items()}


def _row(names: tuple[str, ...], c: Capability, options: Capabilities) -> tuple[Entry, ...]:
    texts = [f"> {options.limit}" if updates is None else str(updates) for updates in (c.zero, c.sign, c.small)]
    edges = c.edges
    if edges.everywhere:
        texts += ["all", "all", ""]
    else:
        texts += [_magnitude(edges.below), _magnitude(edges.above), f"{edges.gaps:.0%}" if edges.gaps else "none"]
    return tuple(Entry(text) for text in (*names, *texts))


def _magnitude(value: float | None) -> str:
    return "none" if value is None else number_text(float(f"{value:.3g}"))


def _caption(options: Capabilities) -> str:
    low, high = options.magnitudes
    weight, small = number_text(options.weight), number_text(options.small)
    return (
        f"Updates until a zero weight is not zero, a weight of {weight} that should be -{weight} is negative, and a "
        f"weight of {small} that should be {weight} is half of it. Then the |w| between {low:.0e} and {high:g} below "
        f"and from which a weight has not moved after {options.updates} equal updates, and the share of |w| in between "
        "where it has not."
    )


def _notes(options: Capabilities) -> tuple[str, ...]:
    return (
        f"Rates of the reference run at their peak, without decay: eta_a {number_text(options.lr)} and eta_m "
        f"{number_text(options.lr_mult)} (Madam: the latter); AdamW {number_text(options.lr_adamw)} [our reading]. "
        f"Gradients of constant size {number_text(options.gradient)}, which matters to the unnormalized form only. In "
        f"block formats the neighbours of a weight are typical of N(0, {number_text(options.deviation)}).",
        f"> {options.limit}: not within {options.limit} updates. all: at no |w| does a weight move. none: no such |w| "
        "in the range.",
    )
