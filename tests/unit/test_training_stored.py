"""Records that another version, an editor or a torn disk has left (N32): the checkpoint before, or one clear line."""

import hashlib
import json
import math

import pytest
import torch
from training_ranks import run_ranks, train_on
from training_runs import StopAfter, assert_same_run, make_data, make_run, metrics_of, summary_of, train

from mpadam.canonical import record_sha256, sha256_of
from mpadam.cli import main
from mpadam.data import TokenData
from mpadam.stored import sha256
from mpadam.study.run_folder import RunFolder, altered, read_json
from mpadam.study.spec import read_run_file, write_run_file
from mpadam.training.checkpoint import Progress, newest, retain, save

STEPS = {"steps": 6, "evaluate_every": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    folder = make_run(tmp_path_factory.mktemp("whole"), data, **STEPS)
    assert train(folder) == 0
    return folder


def edit(path, change):
    """Change the content of a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def store(folder, state):
    """Put another state into a checkpoint, with its checksum."""
    torch.save(state, folder / "state.pt")
    edit(folder / "manifest.json", lambda manifest: manifest.update(state_sha256=sha256(folder / "state.pt")))


def state_without(key):
    def change(folder):
        state = torch.load(folder / "state.pt", weights_only=True)
        store(folder, {name: value for name, value in state.items() if name != key})

    return change


def progress(**changes):
    return lambda folder: edit(folder / "manifest.json", lambda manifest: manifest["progress"].update(changes))


def unsigned(**changes):
    """Progress that an older version has stored, which kept no checksum of it."""

    def change(manifest):
        manifest.pop("progress_sha256", None)
        for key in ("metrics_sha256", "probes_sha256"):
            manifest["progress"].pop(key, None)
        manifest["progress"].update(changes)

    return lambda folder: edit(folder / "manifest.json", change)


def manifest_without(*keys):
    def change(manifest):
        for key in keys[:-1]:
            manifest = manifest[key]
        del manifest[keys[-1]]

    return lambda folder: edit(folder / "manifest.json", change)


OTHER = {  # whole, of this run, and not this version's
    "a field more": progress(tokens_seen=7),
    "a field less": manifest_without("progress", "probes_bytes"),
    "no progress": manifest_without("progress"),
    "code in the state": lambda folder: store(folder, {"model": folder}),
    "a state that is no dict": lambda folder: store(folder, torch.zeros(3)),
    "no optimizer": state_without("optimizer"),
    "no random numbers": state_without("random"),
    "no model": state_without("model"),
}
DAMAGED = {
    "no checksum": manifest_without("state_sha256"),
    "no hash": manifest_without("hash"),
    "a step that is text": progress(step="5"),
    "entries that are text": progress(validation=["5"]),
    **{f"step {step}": progress(step=step) for step in (0, 3, 1000000)},
    "no metrics": progress(metrics_bytes=0),
    "another loss": progress(last_loss=1.0),
    "a step of another folder, no checksum": unsigned(step=3),
    "fewer than no metrics, no checksum": unsigned(metrics_bytes=-5),
    "nobody's, no checksum": unsigned(world_sizes=[0]),
    "an empty validation, no checksum": unsigned(validation=[{}]),
    "a list": lambda folder: (folder / "manifest.json").write_text("[]"),
    "not JSON": lambda folder: (folder / "manifest.json").write_text("{"),
    "not UTF-8": lambda folder: (folder / "manifest.json").write_bytes(b"\xff"),
    "empty": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "an empty state": lambda folder: (folder / "state.pt").write_bytes(b""),
}


@pytest.fixture
def stopped(tmp_path, data):
    """A run with checkpoints of steps 4 and 5."""
    folder = make_run(tmp_path / "run", data, checkpoint_every=4, **STEPS)
    assert train(folder, stop=StopAfter(5)) == 75
    return folder


@pytest.mark.parametrize("change", {**OTHER, **DAMAGED})
def test_n32_a_checkpoint_of_another_version_is_passed_over_in_one_line(stopped, change, whole):
    ({**OTHER, **DAMAGED})[change](stopped / "checkpoints" / "step00000005")
    before = len((stopped / "train.log").read_text().splitlines())
    assert train(stopped) == 0
    log = (stopped / "train.log").read_text().splitlines()[before:]
    assert len([line for line in log if "step00000005 is broken or does not fit" in line]) == 1
    assert any("resumed from step 4 (step00000004)" in line for line in log)
    assert_same_run(stopped, whole)


def test_metrics_that_were_edited_are_written_again_from_before_the_edit(stopped, whole):
    """Valid lines, as long as before."""
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[4] = lines[4].replace('"loss": 4', '"loss": 3')
    assert "".join(lines) != (stopped / "metrics.jsonl").read_text()
    (stopped / "metrics.jsonl").write_text("".join(lines))
    assert train(stopped) == 0
    assert "resumed from step 4" in (stopped / "train.log").read_text()
    assert_same_run(stopped, whole)


def test_probes_that_were_edited_are_written_again_from_before_the_edit(tmp_path, data):
    folder = make_run(tmp_path / "run", data, checkpoint_every=4, **STEPS)
    run = read_run_file(folder / "run.yaml")
    write_run_file(folder / "run.yaml", run.model_copy(update={"probe_every": 1}))
    assert train(folder, stop=StopAfter(5)) == 75
    probes = (folder / "probes.jsonl").read_text()
    edited = probes.replace('"step": 5,', '"step": 7,')
    assert edited != probes
    (folder / "probes.jsonl").write_text(edited)
    assert train(folder) == 0
    assert "resumed from step 4" in (folder / "train.log").read_text()
    assert [json.loads(line)["step"] for line in (folder / "probes.jsonl").open()] == list(range(1, 7))


def test_progress_without_a_checksum_as_older_versions_stored_it_is_read(stopped, whole):
    unsigned()(stopped / "checkpoints" / "step00000005")
    assert train(stopped) == 0
    assert "resumed from step 5" in (stopped / "train.log").read_text()
    assert_same_run(stopped, whole)


@pytest.mark.parametrize("change", ["a field more", "code in the state"])
def test_n32_where_every_checkpoint_is_another_versions_they_are_kept_and_named(stopped, change, capsys):
    kept = {}
    for step in (4, 5):
        OTHER[change](stopped / "checkpoints" / f"step0000000{step}")
        kept[step] = (stopped / "checkpoints" / f"step0000000{step}" / "state.pt").read_bytes()
    assert main(["train", "--run-dir", str(stopped)]) == 3
    line = capsys.readouterr().err.splitlines()[-1]
    assert "step00000005 is whole and of this run, but was written by another version of mpadam" in line
    assert "train with that version, or delete" in line
    for step, state in kept.items():
        assert (stopped / "checkpoints" / f"step0000000{step}" / "state.pt").read_bytes() == state
    assert not (stopped / "failure.json").exists()


def test_n32_ranks_pass_over_a_state_together(tmp_path, data):
    folder = make_run(tmp_path / "run", data, checkpoint_every=2, micro_batch_size=4, **STEPS)
    assert run_ranks(2, lambda ranks: train_on(ranks, folder, stop=StopAfter(3))) == [75, 75]
    OTHER["code in the state"](folder / "checkpoints" / "step00000003")
    assert run_ranks(2, lambda ranks: train_on(ranks, folder)) == [0, 0]
    assert "resumed from step 2" in (folder / "train.log").read_text()
    assert [line["step"] for line in metrics_of(folder)] == list(range(1, 7))


def test_n32_what_was_passed_over_does_not_crowd_out_what_is_saved_after_it(tmp_path):
    for step in (10, 15):
        save(tmp_path, run_hash="abc", progress=Progress(step=step), state={})
        DAMAGED["not JSON"](tmp_path / f"step000000{step}")
    for step in (5, 6, 7):
        saved = save(tmp_path, run_hash="abc", progress=Progress(step=step), state={})
        retain(tmp_path, saved=saved)
        assert newest(tmp_path, run_hash="abc").progress.step == step
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"{\n", b"[1]\n", b"\xff\n"])
def test_n32_a_line_of_metrics_that_is_none_is_noticed_before_training_goes_on(stopped, damage, whole):
    lines = (stopped / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[4] = damage.rjust(len(lines[4]), b" ")  # as long as before
    (stopped / "metrics.jsonl").write_bytes(b"".join(lines))
    assert train(stopped) == 0
    assert "resumed from step 4" in (stopped / "train.log").read_text()
    assert_same_run(stopped, whole)


RESULTS = {
    "no checksum": lambda result: result.pop("metrics_sha256"),
    "no loss": lambda result: result.pop("val_loss"),
    "another loss": lambda result: result.update(val_loss=1.0, val_ppl=math.e),
}


@pytest.mark.parametrize("change", RESULTS)
def test_n32_a_kept_result_that_is_not_whole_or_was_edited_is_not_believed(tmp_path, data, change):
    folder = make_run(tmp_path / "run", data, steps=2, evaluate_every=None)
    assert train(folder) == 0
    good = summary_of(folder)
    edit(folder / "checkpoints" / "result.json", RESULTS[change])
    (folder / "summary.json").unlink()
    assert train(folder) == 0
    assert summary_of(folder)["val_loss"] == good["val_loss"]


EDITS = {
    "seconds": lambda result: result.update(seconds=1.0),
    "peak memory": lambda result: result.update(peak_memory_bytes=1),
    "attempts": lambda result: result.update(attempts=2, world_sizes=[2]),
    "hyperparameters": lambda result: result["hyperparameters"].update(lr=1.0),
    "specification": lambda result: result["spec"]["optimizer"]["values"].update(lr=1.0),
}


@pytest.mark.parametrize("change", EDITS)
def test_a_summary_that_was_edited_like_its_kept_result_is_noticed(tmp_path, whole, change):
    folder = copied(whole, tmp_path)
    assert altered(folder, read_json(folder.summary)) is None
    for path in (folder.summary, folder.result):
        edit(path, EDITS[change])
    assert "its checksum" in altered(folder, read_json(folder.summary))
    edit(folder.final_manifest, lambda manifest: manifest.pop("result_sha256"))  # of an older version
    assert altered(folder, read_json(folder.summary)) is None


@pytest.mark.parametrize("validated", [False, True])
def test_a_diverged_run_that_was_edited_into_a_completed_one_is_noticed(tmp_path, whole, validated):
    """As an older version left it, which kept no checksum of the result."""
    folder = copied(whole, tmp_path)
    entries = [{"step": 3, "loss": 5.0, "perplexity": math.exp(5.0), "tokens": 9}] if validated else []
    edit(folder.final_manifest, lambda manifest: manifest.pop("result_sha256"))
    edit(folder.final_manifest, lambda manifest: manifest["progress"].update(step=4, validation=entries))
    for path in (folder.summary, folder.result):
        edit(path, lambda result: result.update(steps=4, validation=entries, status="diverged", val_loss=None))
    assert altered(folder, read_json(folder.summary)) is None
    values = {"val_loss": 5.0, "val_ppl": math.exp(5.0), "val_tokens": 9, "diverged": None, "status": "completed"}
    for path in (folder.summary, folder.result):
        edit(path, lambda result: result.update(values))
    assert 'status is "completed"' in altered(folder, read_json(folder.summary))


def copied(folder, to):
    for name in ("summary.json", "checkpoints/result.json", "checkpoints/final/manifest.json"):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes((folder / name).read_bytes())
    return RunFolder(to)


@pytest.mark.parametrize("content", ["{", "[]", '{"earlier": 7}', '{"earlier": [1], "host": 2}'])
def test_n32_an_environment_that_is_not_one_does_not_end_training(tmp_path, data, content):
    folder = make_run(tmp_path / "run", data, steps=1, evaluate_every=None)
    (folder / "environment.json").write_text(content)
    assert train(folder) == 0
    assert json.loads((folder / "environment.json").read_text())["after_step"] == 0


def test_n32_a_failure_that_does_not_say_why_is_one(tmp_path, data, capsys):
    folder = make_run(tmp_path / "run", data, steps=1)
    run_hash = (folder / "run.yaml").read_text().splitlines()[0].split()[1].strip("'")
    (folder / "failure.json").write_text(json.dumps({"hash": run_hash}))
    assert main(["train", "--run-dir", str(folder)]) == 2
    assert "delete" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "says"), [("{", "not JSON"), ("[]", "not what this version"), ('{"format": 1}', "no 'fingerprint'")]
)
def test_n32_a_manifest_that_is_none_is_named_with_the_remedy(tmp_path, content, says):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=says) as error:
        TokenData.open(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'manifest.json'}: ")
    assert str(error.value).endswith("run  mpadam data  again")


@pytest.mark.parametrize("change", ["not JSON", "no values", "no such field", "edited"])
def test_n32_a_summary_or_selection_that_is_none_is_one_line(tmp_path, data, change, capsys, whole):
    summary = tmp_path / "summary.json"
    content = summary_of(whole)
    wrong = {
        "not JSON": "{",
        "no values": json.dumps({**content, "spec": {}}),
        "no such field": json.dumps({key: value for key, value in content.items() if key != "status"}),
        "edited": json.dumps({**content, "val_loss": 1.0}),
    }
    summary.write_text(wrong[change])
    (tmp_path / "checkpoints").symlink_to(whole / "checkpoints")
    searched = json.dumps({"trials": [{"lr": 3e-3}]})
    arguments = ["tune", "--searched", searched, "--out", str(tmp_path / "out"), "--trials", str(summary)]
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mpadam tune: {summary}: ")
    assert line.endswith("delete it and run the workflow again")


@pytest.mark.parametrize("name", ["manifest.json", "selected.yaml"])
def test_n32_what_run_yaml_is_made_of_is_named_when_it_is_damaged(tmp_path, name, capsys):
    manifest = {"fingerprint": "0", "tokenizer_fingerprint": "0", "vocab_size": 9, "train_sequences": 9}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest if name == "selected.yaml" else {}))
    (tmp_path / "selected.yaml").write_text("values: 7")
    request = ["spec", "--request", "{}", "--out", str(tmp_path / "run.yaml")]
    request += ["--manifest", str(tmp_path / "manifest.json"), "--selected", str(tmp_path / "selected.yaml")]
    assert main(request) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mpadam spec: {tmp_path / name}: not what this version of mpadam writes")


def test_checksums_are_of_the_texts_that_older_records_were_checked_by():
    """Another layout of the same JSON would have every checkpoint passed over and every finished run called edited."""
    value = {"b": [1, 2.5], "a": None}
    assert record_sha256(value) == hashlib.sha256(b'{"a": null, "b": [1, 2.5]}').hexdigest()
    assert sha256_of(value) == hashlib.sha256(b'{"a":null,"b":[1,2.5]}').hexdigest()
