"""The run folder: whose it is, what is in it, and what an earlier attempt left."""

import json
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
import torch
from training_runs import StopAfter, make_data, make_run, metrics_of, summary_of, train

from mpadam.atomic import write_json
from mpadam.cli import main
from mpadam.durations import duration
from mpadam.stored import sha256
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import read_run_file
from mpadam.training import machine, session
from mpadam.training.folder import RefusedError, claim
from mpadam.training.plot import loss_svg


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def finished(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=3)
    assert train(folder) == 0
    return folder


def command(*arguments):
    """`mpadam` in this process; torch's determinism switch is left as it was."""
    before = torch.are_deterministic_algorithms_enabled()
    try:
        return main([str(argument) for argument in arguments])
    finally:
        torch.use_deterministic_algorithms(before)


# --- records ----------------------------------------------------------------------------------------------------------


def test_the_summary_needs_no_other_file(finished):
    summary, run = summary_of(finished), read_run_file(finished / "run.yaml")
    parameters = 2 * 300 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 72 + 2 * 32) + 32
    assert summary["hash"] == run.spec.hash
    assert summary["spec"] == run.spec.model_dump(mode="json")
    assert summary["labels"] == run.labels.model_dump(mode="json")
    assert summary["metrics_sha256"] == sha256(finished / "metrics.jsonl")
    assert summary["status"] == "completed"
    assert summary["steps"] == 3
    assert summary["positions"] == 3 * 8 * 32
    assert summary["parameters"] == parameters
    assert summary["bytes_per_parameter"] == 2 + 3 * 2  # bf16 weight, m, v, v_e
    assert summary["hyperparameters"]["lr"] == 3e-3
    assert summary["hyperparameters"]["beta1"] == 0.87
    assert summary["validation"][-1]["loss"] == summary["val_loss"]
    assert summary["val_tokens"] == 1000
    assert summary["seconds"] > 0
    assert summary["peak_memory_bytes"] > 50e6


def test_float32_masters_next_to_a_bf16_copy_are_counted(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=1, masters="fp32", state_dtype="fp32", name="adamw")
    assert train(folder) == 0
    assert summary_of(folder)["bytes_per_parameter"] == 4 + 2 + 2 * 4


def test_the_environment_is_told_without_secrets(tmp_path, data, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("WANDB_API_KEY", "0123verysecret")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    folder = make_run(tmp_path / "run", data, steps=1)
    assert train(folder) == 0
    for path in folder.rglob("*"):
        assert not path.is_file() or b"verysecret" not in path.read_bytes(), path
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["slurm"] == {"SLURM_JOB_ID": "4711"}
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["host"] == socket.gethostname()
    assert environment["python"] == sys.version.split()[0]


def test_the_plot_is_a_picture_of_the_run(finished):
    svg = ET.fromstring((finished / "loss.svg").read_text())
    name = "{http://www.w3.org/2000/svg}"
    assert len(svg.find(f"{name}polyline").get("points").split()) == 3
    assert len(svg.findall(f"{name}circle")) == 1


def test_the_plot_puts_lower_losses_lower_and_later_steps_to_the_right():
    svg = ET.fromstring(loss_svg([(1, 5.0), (50, float("nan")), (100, 2.0)], [], title="a < b & c"))
    points = svg.find("{http://www.w3.org/2000/svg}polyline").get("points").split()
    (x1, y1), (x2, y2) = ([float(v) for v in point.split(",")] for point in points)
    assert x1 < x2 <= 640
    assert y1 < y2 <= 400
    assert "a < b & c" in [element.text for element in svg]
    ET.fromstring(loss_svg([], [], title="nothing yet"))


def test_progress_lines_say_step_loss_rates_and_speed(finished):
    log = (finished / "train.log").read_text()
    last = metrics_of(finished)[-1]
    assert f"step 3/3 100% | loss {last['loss']:.4f} | lr {last['lr']:.2e} lr_mult {last['lr_mult']:.2e}" in log
    assert "tokens/s | ETA 0:00" in log
    assert [duration(s) for s in (0, 59.6, 3723)] == ["0:00", "1:00", "1:02:03"]


def test_a_terminal_shows_one_line_that_moves(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    folder = make_run(tmp_path / "run", data, steps=6)
    assert train(folder, stop=StopAfter(4)) == 75
    shown = capsys.readouterr().err.split("\n")
    assert len(shown[1].split("\r")) == 1 + 4
    assert shown[1].split("\r")[-1].startswith("step 4/6  67% | loss ")
    assert shown[2].startswith("stopped after step 4")


def test_seed_streams_are_those_of_the_run(finished, data):
    run, folder = read_run_file(finished / "run.yaml"), RunFolder(finished)
    one = session.open_session(run, folder, session.open_data(run, folder))
    assert one.optimizer.param_groups[0]["seed"] == session.stream_seed(0, "rounding")
    assert (one.batches.indices(0) == type(one.batches)(
        data, sequences="pack", sequence_length=32, global_batch_size=8, seed=session.stream_seed(0, "data-order")
    ).indices(0)).all()  # fmt: skip


# --- finished, failed, another's --------------------------------------------------------------------------------------


def test_a_finished_run_gets_its_summary_back_without_torch(finished):
    """Snakemake deletes summary.json before a job starts; the answer must cost no import of torch."""
    first = (finished / "summary.json").read_bytes()
    (finished / "summary.json").unlink()
    code = (
        "import sys; from mpadam.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or ('torch' in sys.modules and 1) or ('transformers' in sys.modules and 1) or 0)"
    )
    subprocess.run([sys.executable, "-c", code, "train", "--run-dir", finished], check=True, capture_output=True)
    assert (finished / "summary.json").read_bytes() == first


@pytest.mark.parametrize("damage", ["metrics.jsonl", "checkpoints/result.json"])
def test_a_result_that_is_not_intact_is_not_believed(finished, damage):
    first = summary_of(finished)
    path = finished / damage
    path.write_bytes(path.read_bytes()[:-2])
    assert train(finished) == 0
    assert summary_of(finished)["val_loss"] == first["val_loss"]
    assert len(metrics_of(finished)) == 3


def test_labels_may_change_without_training_again(finished):
    text = (finished / "run.yaml").read_text()
    (finished / "run.yaml").write_text(text.replace("study: test", "study: renamed"))
    before = (finished / "metrics.jsonl").read_bytes()
    assert train(finished) == 0
    assert summary_of(finished)["labels"]["study"] == "renamed"
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_another_hash_is_refused_with_the_fields_and_replaced_on_demand(finished, data, capsys):
    old = summary_of(finished)
    make_run(finished, data, steps=3, values={"lr": 1e-3, "lr_mult": 1e-2})
    assert command("train", "--run-dir", finished) == 3
    message = capsys.readouterr().err
    assert "optimizer.values.lr: 0.003 -> 0.001" in message
    assert "optimizer.values.lr_mult" not in message
    assert "--replace" in message
    assert summary_of(finished) == old
    assert command("train", "--replace", "--run-dir", finished) == 0
    new = summary_of(finished)
    assert new["hash"] != old["hash"]
    assert [line["step"] for line in metrics_of(finished)] == [1, 2, 3]
    assert metrics_of(finished)[2]["loss"] != old["train_loss"]


@pytest.mark.parametrize("torn", ["", '{"hash": "01', "[]"])
def test_n32_a_torn_identity_is_passed_over_or_refused_by_what_the_checkpoints_say(tmp_path, data, torn, caplog):
    """It was taken for absent, and another run's records were cut to nothing."""
    folder = RunFolder(make_run(tmp_path / "run", data, steps=4))
    own = read_run_file(folder.run_file)
    make_run(folder.path, data, steps=4, seed=9)
    other = read_run_file(folder.run_file)
    claim(folder, own, replace=False)
    (folder.checkpoints / "step00000002").mkdir()
    write_json(folder.checkpoints / "step00000002" / "manifest.json", {"hash": own.spec.hash})
    folder.identity.write_text(torn)
    with pytest.raises(RefusedError, match=rf"run {own.spec.hash}, .*spec.json is damaged .* or give --replace"):
        claim(folder, other, replace=False)
    claim(folder, own, replace=False)
    assert json.loads(folder.identity.read_text())["hash"] == own.spec.hash
    folder.identity.write_text(torn)
    claim(folder, other, replace=True)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["spec.json"]
    folder.identity.write_text(torn)
    claim(folder, own, replace=False)  # with no checkpoint there is nothing to lose
    assert caplog.text.count("spec.json is damaged") == 4


def test_replacing_starts_from_nothing(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=4)
    assert train(folder, stop=StopAfter(2)) == 75
    make_run(folder, data, steps=4, seed=9)
    assert train(folder, replace=True) == 0
    fresh = make_run(tmp_path / "fresh", data, steps=4, seed=9)
    assert train(fresh) == 0
    assert metrics_of(folder) == metrics_of(fresh)
    assert summary_of(folder)["attempts"] == 1


def test_replace_keeps_what_is_this_runs_own(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=4)
    assert train(folder, stop=StopAfter(2)) == 75
    assert train(folder, replace=True) == 0
    assert summary_of(folder)["attempts"] == 2


def test_a_failure_that_repeating_cannot_mend_is_not_repeated(tmp_path, data, capsys):
    folder = make_run(tmp_path / "run", data, values={"lr": -1.0})
    assert command("train", "--run-dir", folder) == 2
    first = capsys.readouterr().err
    assert "lr = -1.0" in first
    failure = folder / "failure.json"
    assert json.loads(failure.read_text())["hash"] == read_run_file(folder / "run.yaml").spec.hash
    (folder / "checkpoints" / "spec.json").stat()
    assert command("train", "--run-dir", folder) == 2
    assert "earlier attempt" in capsys.readouterr().err
    make_run(folder, data, steps=1)
    assert command("train", "--replace", "--run-dir", folder) == 0
    assert not failure.exists()


def test_other_data_are_refused_and_leave_no_lasting_failure(tmp_path, data, capsys):
    other = make_data(tmp_path / "other", documents_per_split=(300, 60))
    folder = make_run(tmp_path / "run", data, steps=1)
    text = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(text.replace(str(data.folder.resolve()), str(other.folder.resolve())))
    assert command("train", "--run-dir", folder) == 2
    assert "data.fingerprint" in capsys.readouterr().err
    (folder / "run.yaml").write_text(text)
    assert command("train", "--run-dir", folder) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"device": "cuda"}, "no CUDA device"), ({"compile": True}, "true, but it cannot; or write  compile: false")],
)
def test_what_the_machine_lacks_is_said_and_leaves_no_lasting_failure(tmp_path, data, changes, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "compile_problem", lambda device: "it cannot")
    folder = make_run(tmp_path / "run", data, **changes)
    with pytest.raises(ValueError, match=message):
        train(folder)
    assert not (folder / "failure.json").exists()


def test_a_run_file_of_another_numerics_version_is_refused(tmp_path, data, monkeypatch):
    folder = make_run(tmp_path / "run", data)
    monkeypatch.setattr(machine, "numerics_version", lambda masters, optimizer: 99)
    with pytest.raises(ValueError, match="numerics_version"):
        train(folder)


def test_a_folder_without_a_run_file_is_one_clear_line(tmp_path, capsys):
    assert command("train", "--run-dir", tmp_path / "none") == 2
    assert "run.yaml: no such file" in capsys.readouterr().err


# --- several folders, evaluation --------------------------------------------------------------------------------------


def test_several_folders_in_one_process_are_the_runs_that_each_is_alone(tmp_path, data):
    cases = [{"seed": 1}, {"seed": 2, "name": "adamw", "masters": "fp32", "state_dtype": "fp32"}, {"seed": 1}]
    together = [make_run(tmp_path / f"together{i}", data, steps=3, **case) for i, case in enumerate(cases)]
    assert command("train", "--run-dir", *together) == 0
    for i, case in enumerate(cases):
        alone = make_run(tmp_path / f"alone{i}", data, steps=3, **case)
        assert command("train", "--run-dir", alone) == 0
        assert metrics_of(together[i]) == metrics_of(alone)
        assert summary_of(together[i])["val_loss"] == summary_of(alone)["val_loss"]
    assert metrics_of(together[0]) == metrics_of(together[2])


def test_stopping_leaves_the_other_folders_for_later(tmp_path, data):
    folders = [make_run(tmp_path / name, data, steps=3) for name in ("a", "b")]
    assert command("train", "--stop-after-minutes", 0, "--run-dir", *folders) == 75
    assert not (folders[1] / "metrics.jsonl").exists()
    assert command("train", "--run-dir", *folders) == 0


def test_evaluate_repeats_the_validation_of_the_summary(finished, capsys):
    assert command("evaluate", "--run-dir", finished) == 0
    own = capsys.readouterr().out
    summary = summary_of(finished)
    expected = (summary["val_loss"], summary["val_ppl"], summary["val_tokens"])
    assert own == "loss {:.6f}  perplexity {:.4f}  tokens {}\n".format(*expected)
    assert command("evaluate", "--run-dir", finished, "--batch-size", 3) == 0
    assert float(capsys.readouterr().out.split()[1]) == pytest.approx(summary["val_loss"], rel=1e-4)
    assert command("evaluate", "--run-dir", finished, "--batch-size", 0) == 2


def test_evaluate_needs_a_finished_run(tmp_path, data, capsys):
    folder = make_run(tmp_path / "run", data, steps=3)
    assert command("evaluate", "--run-dir", folder) == 2
    assert "train it first" in capsys.readouterr().err


def test_a_run_that_fails_does_not_keep_the_others_of_its_job_from_training(tmp_path, capsys):
    data = make_data(tmp_path)
    failing = make_run(tmp_path / "failing", data, steps=2)
    (failing / "run.yaml").write_text("hash: 1\n")
    others = [make_run(tmp_path / name, data, steps=2) for name in ("one", "two")]
    before = torch.are_deterministic_algorithms_enabled()
    try:
        code = main(["train", "--run-dir", str(others[0]), str(failing), str(others[1])])
    finally:
        torch.use_deterministic_algorithms(before)
    assert code == 2
    assert "failing" in capsys.readouterr().err
    assert all((other / "summary.json").is_file() for other in others)
