"""The golden runs: four tiny trainings whose losses are kept at full precision, and what formats store, by checksum.

    python tests/golden/golden_runs.py      train them and rewrite tests/golden/losses.json and stored.json

Byte-level tokens of invented text, so that no tokenizer and no corpus has a say; two micro-batches an update, clipping,
warm-up, both schedules, two validations.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "unit"))

import torch  # noqa: E402
from training_runs import make_data, make_run, metrics_of, summary_of, train  # noqa: E402

from mpadam.numerics import Format, Fp8Blocks, NvFp4, random_bits  # noqa: E402
from mpadam.numerics.bits import bits_of  # noqa: E402

FILE = HERE / "losses.json"
STORED = HERE / "stored.json"
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        *(Fp8Blocks(fmt=fmt, power_of_two_scale=power) for fmt in ("e5m2", "e4m3") for power in (True, False)),
        NvFp4(),
        NvFp4(tensor_scale="pow2_sticky"),
    )
}
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


def stored_after_updates(f: Format, rounding: str) -> str:
    """SHA-256 of what `f` stores after 40 updates, of which some are small, some large and some shrink everything.

    Weights and updates come from integers and exact products, so that every machine has the same.
    """
    index = torch.arange(6 * 300).reshape(6, 300)
    uniform = [bits_of(index, (key, 0)).to(torch.float32) * 2.0**-31 for key in range(41)]
    stored = f.encode(uniform[0] * uniform[0].abs() * 0.0625)
    for step in range(1, 41):
        w = f.decode(stored)
        x = w * 0.5 if step % 13 == 0 else w + uniform[step] * 2.0 ** -(6 + step % 9)
        bits = random_bits(seed=0, step=step, tensor_id=0, shape=x.shape) if rounding == "stochastic" else None
        stored = f.encode(x, rounding=rounding, bits=bits, previous=stored)
    parts = [name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
             for name, tensor in sorted(stored.tensors.items())]  # fmt: skip
    return hashlib.sha256(b"".join(parts)).hexdigest()


def write() -> None:
    """Train all golden runs and rewrite the files."""
    stored = {name: {rounding: stored_after_updates(f, rounding) for rounding in ("nearest", "stochastic")}
              for name, f in FORMATS.items()}  # fmt: skip
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
    runs = {}
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            runs[run] = train_golden(Path(folder), run)
    FILE.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    write()
