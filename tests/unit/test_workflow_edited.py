"""Results that were edited by hand are noticed when the workflow starts, at the price of a few dates."""

import hashlib
import json
import math
import os
import shutil

import pytest
from training_runs import make_data, make_run, summary_of, train

from mpadam.workflow import edited
from mpadam.workflow.edited import is_edited, shows_refused


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("run"), make_data(tmp_path_factory.mktemp("data")), steps=2)
    assert train(folder) == 0
    return folder


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture
def table(run):
    """Made of the run's summary a second after it."""
    path = run.with_name("runs.csv")
    path.write_text("folder,status,hash\nrun,completed,0\n")
    later(path, run / "summary.json")
    return path


def later(path, than):
    date = than.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(date, date))


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_what_training_wrote_is_not_edited(run, table):
    assert not is_edited(run, checked=table)
    assert not is_edited(run, checked=run / "none yet")
    assert not is_edited(run / "absent", checked=table)
    later(run / "metrics.jsonl", run / "summary.json")  # touched, or copied without its date
    assert not is_edited(run, checked=table)
    labels = {**summary_of(run)["labels"], "study": "renamed"}
    change(run / "summary.json", labels=labels)
    later(run / "summary.json", table)
    assert not is_edited(run, checked=table)


def test_metrics_that_were_edited_are_noticed(run, table):
    metrics = run / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"step": 2', '"step": 3'))
    later(metrics, run / "summary.json")
    assert is_edited(run, checked=table)


def test_probes_that_were_edited_are_noticed(run, table):
    probes, kept = run / "probes.jsonl", [run / "summary.json", run / "checkpoints" / "result.json"]
    probes.write_text('{"step": 1}\n')
    later(probes, run / "summary.json")
    assert not is_edited(run, checked=table)  # older summaries say nothing of them
    (run / "checkpoints" / "final" / "manifest.json").unlink()
    for path in kept:
        change(path, probes_sha256=hashlib.sha256(probes.read_bytes()).hexdigest())
    later(probes, run / "summary.json")
    assert not is_edited(run, checked=table)
    probes.write_text('{"step": 2}\n')
    later(probes, run / "summary.json")
    assert is_edited(run, checked=table)


EDITS = {
    "the loss": {"val_loss": 1.0, "val_ppl": math.e},
    "seconds": {"seconds": 1.0},
    "the status": {"status": "diverged"},
    "a new field": {"better": True},
}


@pytest.mark.parametrize("what", EDITS)
def test_a_summary_that_was_edited_consistently_is_noticed(run, table, what):
    """With the hash of metrics that were edited too."""
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() * 2)
    digest = hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest()
    change(run / "summary.json", metrics_sha256=digest, **EDITS[what])
    later(run / "summary.json", table)
    assert is_edited(run, checked=table)


def test_a_summary_that_was_edited_with_its_kept_copy_is_held_against_the_checkpoint(run, table):
    for path in (run / "summary.json", run / "checkpoints" / "result.json"):
        change(path, **EDITS["the loss"])
    later(run / "summary.json", table)
    assert is_edited(run, checked=table)


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_summary_that_is_none_is_made_again(run, table, content):
    (run / "summary.json").write_text(content)
    later(run / "summary.json", table)
    assert is_edited(run, checked=table)


def test_a_run_that_was_looked_at_since_is_not_read_again(run, table, monkeypatch):
    """A start of a study of thousands of runs reads dates."""
    monkeypatch.setattr(edited, "read_json", None)
    monkeypatch.setattr(edited, "edited_records", None)
    assert not is_edited(run, checked=table)


def test_a_copy_without_checkpoints_has_nothing_to_be_held_against(run, table):
    shutil.rmtree(run / "checkpoints")
    change(run / "summary.json", **EDITS["the loss"])
    later(run / "summary.json", table)
    assert not is_edited(run, checked=table)


def test_tables_that_show_a_refused_run_are_told_from_others(table):
    assert not shows_refused(table)
    assert not shows_refused(table.with_name("none"))
    table.write_text(table.read_text().replace("completed", "refused"))
    assert shows_refused(table)
