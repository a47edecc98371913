"""Bytes per parameter of weights, gradients and optimizer states for the paper's models, counted from the tensors that
each optimizer holds, and what Apollo-E saves of M+Adam's second state.
"""

import pandas as pd

from mpadam.analysis.cells import BASELINE
from mpadam.exhibits.kit.table import Table, entries
from mpadam.exhibits.source import Source

NAME = "memory"
TITLE = "Memory of optimizers, with Apollo-E"
NEEDS = "measure/memory.json"
CHECKED = {"tables/memory.csv": ("total_bytes", "states_above_adamw")}


def make(source: Source) -> Table:
    kept = pd.DataFrame(source.record(NEEDS)["footprints"])
    plain = kept[(kept["optimizer"] == BASELINE) & (kept["masters"] == "bf16")]
    above = kept["states_bytes"] - kept["model"].map(plain.set_index("model")["states_bytes"])
    kept = kept.assign(states_above_adamw=above)
    return Table(
        NAME,
        TITLE,
        caption=(
            "Bytes per parameter, counted from the tensors that the optimizer holds for the shapes of the paper's "
            "LLaMAs: bf16 weights, gradients and states, and for comparison AdamW with fp32 masters and fp32 states. "
            "Apollo-E keeps a rank-4 compression of M+Adam's second state: of attention and MLP projections, or of "
            "embedding and head too (all matrices). The paper's footprint for Apollo-E is quoted as 0.4 to 0.8 bytes a "
            "parameter above AdamW; with embedding and head left whole it depends on the size of the model. "
            "Activations are not counted."
        ),
        header=(
            *("model", "optimizer", "weights", "gradients", "states", "states above AdamW"),
            *("total", "total, GB"),
        ),
        rows=tuple(
            entries(
                *(row["model"], row["label"], f"{row['weight_bytes'] + row['compute_copy_bytes']:.2f}"),
                *(f"{row[name]:.2f}" for name in ("gradient_bytes", "states_bytes")),
                "–" if row["masters"] == "fp32" else f"{row['states_above_adamw']:+.3f}",
                *(f"{row['total_bytes']:.2f}", f"{row['total_bytes'] * row['parameters'] / 1e9:.2f}"),
            )
            for row in kept.to_dict("records")
        ),
        headings=2,
        data=kept.drop(columns="label"),
    )
