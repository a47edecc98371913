"""Table 1 for every write-back: rounding to nearest, stochastic rounding, Kahan's carried remainder, and ECO where the
study lists it."""

from mpadam.diagnostics.records import tidy_capabilities
from mpadam.exhibits.kit.table import Table
from mpadam.exhibits.source import Source
from mpadam.exhibits.table1 import MEASURED, capabilities, caption, notes, row
from mpadam.optim.names import ERROR_FEEDBACK

NAME = "table1-write-backs"
TITLE = "What an update can do with each write-back, measured"
NEEDS = "diagnostics/capabilities"
PLACE = 91
_ECO = " eco, eco_stochastic: what rounding lost, to nearest or stochastically, is added to AdamW's first moment."


def make(source: Source) -> Table:
    options, found = capabilities(source)
    return Table(
        NAME,
        TITLE,
        caption=(
            f"{caption(options)} nearest: rounding to nearest; stochastic: half of {options['copies']} weights must "
            "have moved; kahan: what rounding lost is carried in bf16 and added to the next step."
            + (_ECO if ERROR_FEEDBACK & set(options["write_backs"]) else "")
        ),
        header=("format", "optimizer", "write-back", *MEASURED),
        rows=tuple(row(one, options, ("fmt", "optimizer", "write_back")) for one in found),
        headings=3,
        data=tidy_capabilities(found),
        notes=(
            *notes(options),
            "Stochastic rounding moves a weight as far as intended on average, however large it is; lost means here "
            f"that it usually waits for more than {options['updates']} updates. In NVFP4 a weight that sets its "
            "block's scale also moves because the block is scaled again.",
        ),
    )
