"""`mpadam.UpdateProbe`: where its records go, what they say, and its place in a training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from update_probe_model import Model, probed, same

import mpadam
from mpadam.cli import main
from mpadam.probes import update_probe
from mpadam.probes.outlets import outlet
from mpadam.probes.reading import paragraph, percent, read_records

ROOT = Path(__file__).parents[2]


# --- where records go, and what they say ------------------------------------------------------------------------------


class Tracker:
    """A W&B run and a SummaryWriter, as far as records go there."""

    def __init__(self, *methods: str) -> None:
        self.sent: dict[str, float] = {}
        for method in methods:
            setattr(self, method, getattr(self, f"_{method}"))

    def _log(self, values, commit):
        assert not commit
        self.sent |= values

    def _add_scalar(self, name, value, step):
        assert step % 2 == 0
        self.sent[name] = value


def test_records_go_to_files_trackers_and_functions(tmp_path):
    wandb, tensorboard, records, path = Tracker("log"), Tracker("add_scalar"), [], tmp_path / "deep" / "updates.jsonl"
    model = Model()
    probed_records = probed(
        torch.optim.AdamW(model.parameters()), model, out=[path, wandb, tensorboard, records.append], samples=500
    )
    assert probed_records == []
    assert [json.loads(line) for line in path.read_text().splitlines()] == records
    assert wandb.sent == tensorboard.sent
    assert wandb.sent["update_probe/lost/stored"] == records[-1]["lost"]["stored"] / records[-1]["intended"]
    assert {"update_probe/lost by layer/wide", "update_probe/held still in bf16/exp_avg_sq"} < wandb.sent.keys()


def test_a_resumed_training_replaces_the_steps_it_repeats(tmp_path):
    path = tmp_path / "updates.jsonl"
    send = outlet(path)
    model = Model()
    (made,) = probed(torch.optim.SGD(model.parameters()), model, steps=2)

    def record(step):
        return made | {"step": step}

    for step in (1, 2, 3, 2, 3, 4):
        send(record(step))
    assert [found["step"] for found in read_records(path)] == [1, 2, 3, 4]
    text = path.read_text()
    path.write_text(text + text[:30])
    outlet(path)(record(5))
    with pytest.warns(UserWarning, match="line 7: unfinished, so it is left out"):
        found = read_records(path)
    assert [each["step"] for each in found] == [1, 2, 3, 4, 5]


FOREIGN = {
    b"": "has no record",
    b'{"loss": 1}\n': "line 1: not a record",
    b'{"step": 3}\n': "line 1: not a record",
    b"[1]\n": "line 1: not a record",
    b"# mpadam": "line 1: not a record",
    b"\xff\xfe": "not JSON",
}


@pytest.mark.parametrize("content", FOREIGN)
def test_i21_a_file_that_is_no_probes_is_named_with_the_remedy(content, tmp_path, capsys):
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    assert main(["probe", "report", str(path)]) == 2
    told = capsys.readouterr().err
    assert str(path) in told
    assert FOREIGN[content] in told
    assert told.count("\n") == 1


def test_the_paragraph_says_what_was_measured_and_no_more():
    model = Model()
    records = probed(torch.optim.AdamW(model.parameters(), lr=1e-3), model)
    text = paragraph(records)
    lost = sum(r["lost"]["stored"] for r in records) / sum(r["intended"] for r in records)
    assert f"{percent(lost)} of the updates that float32 can hold left the stored weight unchanged" in text
    assert "What would help in bf16" in text
    assert "Kahan summation keeps 100% in weight or carry" in text
    exact = Model(torch.float32)
    text = paragraph(probed(torch.optim.AdamW(exact.parameters(), lr=1e-3), exact))
    assert "0% of the updates" in text
    assert "Nothing has to be mended" in text


def test_the_paragraph_names_what_keeps_the_rounding_of_mpadams_optimizers():
    for write_back, keeper in (("kahan", "the carry keeps"), ("eco", "the first moment keeps"), ("nearest", None)):
        model = Model()
        optimizer = mpadam.AdamW(model.parameters(), lr=1e-3, weight_format="fp8_e5m2", write_back=write_back)
        text = paragraph(probed(optimizer, model, steps=2))
        assert "What would help in FP8 e5m2" in text
        assert (keeper in text) if keeper else ("keeps what was rounded" not in text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "none"), (0.0, "0%"), (1e-6, "less than 0.01%"), (0.004, "0.40%"), (0.5, "50%"), (0.999, "99.90%"),
     (0.99999, "more than 99.99%"), (1.0, "100%")],
)  # fmt: skip
def test_a_share_is_never_rounded_to_nothing_or_all(value, shown):
    assert percent(value) == shown


def test_the_report_is_drawn(tmp_path, capsys):
    path, model = tmp_path / "updates.jsonl", Model()
    probed(torch.optim.AdamW(model.parameters(), lr=1e-3), model, out=path)
    assert main(["probe", "report", str(path)]) == 0
    assert "What would help in bf16" in capsys.readouterr().out
    drawn = (tmp_path / "updates.svg").read_text()
    assert "</svg>" in drawn
    assert (tmp_path / "updates.png").read_bytes().startswith(b"\x89PNG")
    assert main(["probe", "report", str(path), "--out", str(tmp_path / "other.pdf")]) == 0
    assert (tmp_path / "other.pdf").exists()
    capsys.readouterr()
    assert main(["probe", "report", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: no such file; give the file" in capsys.readouterr().err


# --- around the training ----------------------------------------------------------------------------------------------


def test_a_closed_probe_looks_no_more_and_a_resumed_one_counts_on():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters())
    assert [record["step"] for record in probed(optimizer, model, steps=5, step=3)] == [4, 6, 8]
    records = probed(optimizer, model)
    model.give_gradients(0)
    optimizer.step()
    assert len(records) == 3
    assert not optimizer._optimizer_step_pre_hooks


def test_a_probe_that_costs_much_says_so_once():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.warns(UserWarning, match=r"every=\d+ would take 1%") as seen:
        probed(optimizer, model, steps=11, every=1, samples=16)
    assert len(seen) == 1


def test_i21_the_default_interval_takes_at_most_1_percent_of_the_time(monkeypatch):
    """A clock that only a step (1 s) and a measurement (3 s) move: the second fits in 600 s, the third in 900."""
    clock, model, records = SimpleNamespace(now=0.0), Model(), []
    monkeypatch.setattr(update_probe, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    tally = update_probe.tally
    monkeypatch.setattr(update_probe, "tally", lambda *args, **kwargs: (wait(3.0), tally(*args, **kwargs))[1])

    def wait(seconds):
        clock.now += seconds

    optimizer = torch.optim.SGD(model.parameters())
    mpadam.UpdateProbe(optimizer, model, out=records.append, samples=16)
    for _ in range(1000):
        wait(1.0)
        model.bias.grad = torch.ones_like(model.bias)
        optimizer.step()
    assert [(found["step"], found["left_out"]) for found in records] == [(100, 0), (600, 4), (900, 6)]
    assert all(found["time_share"] <= 0.01 for found in records[1:])
    assert "It left out 6 measurements" in paragraph(records)


def test_names_and_parameters_that_come_later():
    model, records = Model(), []
    optimizer = torch.optim.SGD([model.wide, nn.Parameter(torch.ones(3))])
    mpadam.UpdateProbe(optimizer, model, every=1, out=records.append)
    optimizer.add_param_group({"params": [model.bias]})
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    optimizer.step()
    assert list(records[0]["layers"]) == ["wide", "group 0, parameter 1", "group 1, parameter 0"]


def test_a_frozen_parameter_and_numbers_that_are_not_finite():
    """mpadam's optimizers take up a parameter at its first gradient; a diverged step must not end the training."""
    for own in (True, False):
        model, records = Model(), []
        model.bias.requires_grad_(False)
        cls = mpadam.AdamW if own else torch.optim.AdamW
        optimizer = cls(model.parameters(), lr=1e-3)
        mpadam.UpdateProbe(optimizer, model, every=1, out=records.append)
        model.give_gradients(0)
        model.bias.requires_grad_(True)
        model.wide.grad[0] = torch.nan
        optimizer.step()
        assert ("bias" in records[0]["layers"]) is not own
        json.dumps(records, allow_nan=False)


def test_i21_steps_that_are_not_finite_or_zero_are_no_updates_that_survive():
    for gradient in (torch.nan, torch.inf, 0.0):
        model, records = Model(), []
        optimizer = torch.optim.SGD(model.parameters())
        mpadam.UpdateProbe(optimizer, model, every=1, out=records.append)
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        optimizer.step()
        assert records[0]["intended"] == records[0]["trials"]["bf16/nearest"]["intended"] == 0
        assert "step 1. No update of float32 would change a weight" in paragraph(records)


def test_it_needs_torch_and_numpy_alone():
    absent = ("pandas", "matplotlib", "seaborn", "pydantic", "transformers", "scipy", "yaml", "jinja2", "tabulate")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
import torch, mpadam
model, records = torch.nn.Linear(4, 4).bfloat16(), []
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
mpadam.UpdateProbe(optimizer, model, every=1, out=records.append)
model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
optimizer.step()
from mpadam.probes.reading import paragraph
print(paragraph(records))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "What would help" in done.stdout or "Nothing has to be mended" in done.stdout


PAGE = ROOT / "docs" / "update-probe.md"


def blocks():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_first_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(blocks()[0], PAGE.name, "exec"), {"__name__": "docs"})
    assert [record["step"] for record in read_records(tmp_path / "updates.jsonl")] == [10, 20, 30]


def test_the_trainer_of_the_page_has_the_same_bits_with_the_callback(tmp_path, monkeypatch):
    ends = []
    for block in (blocks()[1], re.sub(r", callbacks=\[.*?\]\n", "\n", blocks()[1])):
        monkeypatch.chdir(tmp_path)
        torch.manual_seed(0)
        names: dict = {"__name__": "docs"}
        exec(compile(block, PAGE.name, "exec"), names)
        ends.append([p.detach() for p in names["model"].parameters()])
    assert same(*ends)
    assert [record["step"] for record in read_records(tmp_path / "updates.jsonl")] == [2, 4, 6]
