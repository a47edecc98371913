"""The golden runs: four tiny trainings whose losses are kept at full precision.

    python tests/golden/golden_runs.py      train them and rewrite tests/golden/losses.json

Byte-level tokens of invented text, so that no tokenizer and no corpus has a say; two micro-batches an update, clipping,
warm-up, both schedules, two validations.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "unit"))

from training_runs import make_data, make_run, metrics_of, summary_of, train  # noqa: E402

from mpadam.study.spec import NUMERICS_VERSION  # noqa: E402

FILE = HERE / "losses.json"
STEPS = 30
BYTES = 258  # 256 bytes, padding and end of document: a vocabulary without a single merge
RUNS = {f"{masters}-bf16 {name}": (masters, name) for masters in ("fp32", "bf16") for name in ("adamw", "m-plus-adam")}


def train_golden(folder: Path, run: str, **changes: Any) -> dict[str, Any]:
    """Train one of the golden runs: its losses, gradient norms and validation losses."""
    masters, name = RUNS[run]
    data = make_data(folder, vocab_size=BYTES)
    options = {"masters": masters, "state_dtype": masters, "name": name, "micro_batch_size": 4, "evaluate_every": 15}
    path = make_run(folder / "run", data, checkpoint_every=1000, steps=STEPS, **{**options, **changes})
    assert train(path) == 0
    lines = metrics_of(path)
    return {
        "loss": [line["loss"] for line in lines],
        "grad_norm": [line["grad_norm"] for line in lines],
        "val_loss": [entry["loss"] for entry in summary_of(path)["validation"]],
    }


def write() -> None:
    """Train all golden runs and rewrite their file."""
    runs = {}
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            runs[run] = train_golden(Path(folder), run)
    FILE.write_text(json.dumps({"numerics_version": NUMERICS_VERSION, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    write()
