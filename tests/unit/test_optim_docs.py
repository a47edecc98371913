"""The Python blocks of docs/optimizers.md run as they stand, and a Trainer resumes with the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs" / "optimizers.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The names that a block of the page leaves behind, run in `folder`."""
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    names: dict = {"__name__": "docs"}
    exec(compile(block, DOCS.name, "exec"), names)
    return names


def test_the_page_has_the_blocks_that_are_run() -> None:
    firsts = [next(line for line in block.splitlines() if "mpadam" in line) for block in BLOCKS]
    assert len(BLOCKS) == 3, firsts


def test_the_plain_loop_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(BLOCKS[0], tmp_path, monkeypatch)
    untrained = torch.log(torch.tensor(4.0)).item()
    assert names["loss"].item() < untrained
    assert names["optimizer"].param_groups[0]["lr"] == 0.0  # the schedule has ended


def test_the_trainer_trains_and_resumes_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(BLOCKS[1], tmp_path, monkeypatch)
    assert whole["trainer"].state.global_step == 6
    (tmp_path / "out" / "checkpoint-6").rename(tmp_path / "finished")
    block = BLOCKS[1].replace("trainer.train()", "trainer.train(resume_from_checkpoint=True)")
    resumed = run(block, tmp_path, monkeypatch)
    for (name, p), q in zip(whole["model"].named_parameters(), resumed["model"].parameters(), strict=True):
        assert torch.equal(p, q), name
    optimizers = whole["optimizer"], resumed["optimizer"]
    codes = [[o.store_of(p).read() for g in o.param_groups for p in g["params"]] for o in optimizers]
    assert all(torch.equal(a, b) for a, b in zip(*codes, strict=True))


def test_finer_weights_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(BLOCKS[2], tmp_path, monkeypatch)
    assert not torch.equal(names["weight"], names["model"].weight.float())
