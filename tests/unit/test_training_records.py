"""What a training tells besides its numbers: provenance without secrets, speed, pictures on the way, W&B (T5)."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from training_runs import StopAfter, assert_same_run, make_data, make_run, metrics_of, summary_of, train

from mpadam.cli import main
from mpadam.plan.assumptions import GPUS
from mpadam.study.spec import read_run_file
from mpadam.training import loop, provenance
from mpadam.training.checkpoint import Progress
from mpadam.training.summary import flops_per_position, speed

SECRET = "hf_0123456789verysecret"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def edit_run_file(folder, **changes):
    """Change settings of run.yaml that are not hashed."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}, sort_keys=False))


def assert_nowhere(folder, secret):
    for path in folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


# --- provenance ------------------------------------------------------------------------------------------------------


def test_no_token_of_the_environment_or_of_a_remote_is_told(tmp_path, data, monkeypatch):
    """A clone whose remote holds a token, and variables of every kind that hold one."""
    repository = tmp_path / "clone"
    git = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "file.txt").write_text("one")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    subprocess.run([*git, "remote", "add", "origin", f"https://user:{SECRET}@example.org/repo.git"], check=True)
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_OWN", "GIT_CONFIG_PARAMETERS_X"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{SECRET}@proxy.example.org:3128")

    told = provenance.environment("cpu", source=repository)
    assert re.fullmatch(r"[0-9a-f]{40}", told["commit"])
    assert told["dirty"] is False
    (repository / "file.txt").write_text("two")
    assert provenance.environment("cpu", source=repository)["dirty"] is True
    assert SECRET not in json.dumps(told)

    folder = make_run(tmp_path / "run", data, steps=1)
    assert train(folder) == 0
    assert_nowhere(folder, SECRET)


def test_each_attempt_is_told_and_only_what_changed_of_those_before(tmp_path, data, monkeypatch):
    folder = make_run(tmp_path / "run", data)
    for number, job in enumerate(("4711", "4712", "4713")):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        assert train(folder, stop=StopAfter(4) if number < 2 else None) == (75 if number < 2 else 0)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["after_step"] == 8
    assert environment["slurm"]["SLURM_JOB_ID"] == "4713"
    assert environment["world_size"] == 1
    assert environment["ranks"] == [{"host": socket.gethostname(), "device": {"kind": "cpu"}}]
    first, second = environment["earlier"]
    assert (first["after_step"], second["after_step"]) == (0, 4)
    assert (first["slurm"]["SLURM_JOB_ID"], second["slurm"]["SLURM_JOB_ID"]) == ("4711", "4712")
    assert first.keys() == {"after_step", "time", "host", "slurm"}


# --- speed -----------------------------------------------------------------------------------------------------------


def spec_of(tmp_path, data, **changes):
    return read_run_file(make_run(tmp_path / "spec", data, **changes) / "run.yaml").spec


def test_flops_are_those_of_every_matrix_product_of_a_position(tmp_path, data):
    spec = spec_of(tmp_path, data)
    h, f, layers, vocabulary, length = 32, 72, 2, spec.model.vocab_size, 32
    products = [(h, h)] * 4 + [(h, f)] * 3
    forward = layers * (sum(2 * a * b for a, b in products) + 2 * 2 * h * length) + 2 * h * vocabulary
    assert flops_per_position(spec.model) == 3 * forward


def test_speed_is_told_where_it_has_a_meaning(tmp_path, data):
    progress = Progress(timed_seconds=2.0, timed_tokens=500, timed_positions=1000, device_seconds=7200.0)
    bf16, fp8 = spec_of(tmp_path, data), spec_of(tmp_path / "fp8", data, compute="fp8")
    flops = flops_per_position(bf16.model) * 500
    on_gpu = speed(progress, bf16, world_size=2, device_name="NVIDIA H100 80GB HBM3")
    assert on_gpu["tokens_per_s"] == 250.0
    assert on_gpu["model_flops_per_s"] == pytest.approx(flops, rel=1e-3)
    assert on_gpu["mfu"] == round(flops / (2 * GPUS["h100"].peak["bf16"]), 4)
    assert on_gpu["gpu_hours"] == 2.0
    for spec, name in ((fp8, "NVIDIA H100 80GB HBM3"), (bf16, "NVIDIA H100 PCIe"), (bf16, None)):
        assert speed(progress, spec, world_size=2, device_name=name)["mfu"] is None
    assert speed(progress, bf16, world_size=1, device_name=None)["gpu_hours"] is None
    nothing = speed(Progress(), bf16, world_size=1, device_name=None)
    assert set(nothing.values()) == {None}


def test_the_first_updates_of_each_attempt_are_left_out_of_the_speed(tmp_path, data, monkeypatch):
    """A clock of the test's own: the first five updates of an attempt take 100 s each, the others one."""
    now, updates = [0.0], []
    monkeypatch.setattr("mpadam.training.progress.time.perf_counter", lambda: now[0])
    good = loop.update

    def slow(session, gradients):
        good(session, gradients)
        updates.append(1)
        now[0] += 100.0 if len(updates) <= 5 else 1.0

    monkeypatch.setattr(loop, "update", slow)
    folder = make_run(tmp_path / "run", data, steps=16)
    assert train(folder, stop=StopAfter(8)) == 75
    updates.clear()
    assert train(folder) == 0
    summary, tokens = summary_of(folder), 8 * 31
    assert summary["tokens_per_s"] == tokens
    assert summary["model_flops_per_s"] == pytest.approx(
        flops_per_position(read_run_file(folder / "run.yaml").spec.model) * 8 * 32, rel=1e-3
    )
    assert summary["seconds"] == 2 * 503.0
    assert [line["tokens_per_s"] for line in map(json.loads, (folder / "metrics.jsonl").open())][4:7] == [
        2.5, tokens, tokens
    ]  # fmt: skip


# --- pictures --------------------------------------------------------------------------------------------------------


def test_the_picture_is_drawn_while_the_run_trains(tmp_path, data, monkeypatch):
    """Every `plot_every` steps and at each validation; what it shows is what is logged by then."""
    folder = make_run(tmp_path / "run", data, steps=10, evaluate_every=5)
    edit_run_file(folder, plot_every=3)
    shown = {}
    good = loop.backward

    def look(session, step):
        if (folder / "loss.svg").exists():
            name, svg = "{http://www.w3.org/2000/svg}", ET.parse(folder / "loss.svg")
            shown[step] = (len(svg.find(f"{name}polyline").get("points").split()), len(svg.findall(f"{name}circle")))
        return good(session, step)

    monkeypatch.setattr(loop, "backward", look)
    assert train(folder) == 0
    assert shown == {4: (3, 0), 5: (3, 0), 6: (5, 1), 7: (6, 1), 8: (6, 1), 9: (6, 1), 10: (9, 1)}


def test_when_pictures_are_drawn_is_not_part_of_a_runs_identity(tmp_path, data):
    folder = make_run(tmp_path / "run", data, steps=3)
    assert train(folder) == 0
    before = (folder / "metrics.jsonl").read_bytes()
    edit_run_file(folder, plot_every=1, checkpoint_every=1)
    assert train(folder) == 0
    assert (folder / "metrics.jsonl").read_bytes() == before


# --- T5: Weights & Biases --------------------------------------------------------------------------------------------


class FakeRun:
    """Keeps what it is told; raises at the step that `fails_at` names."""

    def __init__(self, arguments, fails_at):
        self.arguments, self.logged, self.finished, self._fails_at = arguments, [], False, fails_at

    def log(self, values, *, step):
        if step == self._fails_at:
            raise BrokenPipeError("the service is gone")
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def fake_wandb(monkeypatch):
    """A stand-in for the package; `runs` are those that were begun, `asked` whether it asked for a key.

    As the real one, it asks where it is online, has no key and sees a terminal, and takes the end of input for Ctrl-C.
    """
    module = types.ModuleType("wandb")
    module.runs, module.fails_at, module.error, module.has_key, module.asked = [], None, None, True, False
    module.Settings = types.SimpleNamespace

    def log_in():
        if not sys.stdin.isatty():
            raise RuntimeError("No API key configured.\nUse `wandb login` to log in.")
        module.asked = True
        if not sys.stdin.readline():
            raise KeyboardInterrupt

    def init(**arguments):
        if module.error is not None:
            raise module.error
        if arguments["mode"] == "online" and not module.has_key:
            log_in()
        module.runs.append(FakeRun(arguments, module.fails_at))
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr("mpadam.training.tracking.importlib.util.find_spec", lambda name: True)
    return module


def tracked(folder, data, mode="offline", **changes):
    make_run(folder, data, **changes)
    edit_run_file(folder, wandb={"mode": mode, "project": "mpadam", "entity": None})
    return folder


def test_t5_wandb_is_not_even_imported_unless_it_is_on(tmp_path, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it is an error from now on
    folder = make_run(tmp_path / "run", data, steps=1)
    assert train(folder) == 0
    assert summary_of(folder)["status"] == "completed"
    assert "W&B" not in (folder / "train.log").read_text()
    with pytest.raises(ImportError):
        import wandb  # noqa: F401


def test_t5_one_run_by_the_hash_over_all_attempts_and_each_logged_step(tmp_path, data, fake_wandb):
    folder = tracked(tmp_path / "run", data)
    for updates in (4, 4):
        assert train(folder, stop=StopAfter(updates)) == 75
    assert train(folder) == 0
    run_hash = read_run_file(folder / "run.yaml").spec.hash
    assert [run.arguments["id"] for run in fake_wandb.runs] == [run_hash] * 3
    assert {run.arguments["resume"] for run in fake_wandb.runs} == {"allow"}
    assert all(run.finished for run in fake_wandb.runs)
    losses = [(step, v["loss"]) for run in fake_wandb.runs for step, v in run.logged if "loss" in v]
    assert losses == [(line["step"], line["loss"]) for line in metrics_of(folder)]
    validations = [v["validation/loss"] for run in fake_wandb.runs for _, v in run.logged if "validation/loss" in v]
    assert validations == [entry["loss"] for entry in summary_of(folder)["validation"]]
    settings = fake_wandb.runs[0].arguments["settings"]
    assert settings.disable_git is settings.disable_code is settings.x_disable_meta is True


@pytest.mark.parametrize("failure", ["at the start", "on the way"])
def test_t5_nothing_that_wandb_fails_at_ends_or_changes_a_training(tmp_path, data, fake_wandb, failure, caplog):
    plain = make_run(tmp_path / "plain", data)
    assert train(plain) == 0
    if failure == "at the start":
        fake_wandb.error = ConnectionError("no network")
    else:
        fake_wandb.fails_at = 4
    folder = tracked(tmp_path / "run", data, mode="online")
    with caplog.at_level(logging.WARNING):
        assert train(folder) == 0
    assert_same_run(folder, plain)
    assert caplog.text.count("W&B is off for the rest of this attempt") == 1
    assert "W&B is off" in (folder / "train.log").read_text()


@pytest.mark.parametrize("typed", [b"3\n", b"\x04"], ids=["an answer", "end of input"])
def test_n34_nothing_ever_asks_for_a_key(tmp_path, data, fake_wandb, monkeypatch, typed):
    """Online without a key on a terminal; what is typed there stays unread."""
    ours, terminal = os.openpty()
    os.write(ours, typed)
    fake_wandb.has_key = False
    folder = tracked(tmp_path / "run", data, mode="online", steps=2)
    with os.fdopen(ours), os.fdopen(terminal, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert train(folder) == 0
        assert sys.stdin is stdin
    assert not fake_wandb.asked
    assert not fake_wandb.runs
    (warning,) = [line for line in (folder / "train.log").read_text().splitlines() if "W&B" in line]
    assert "No API key configured. Use `wandb login`" in warning
    assert summary_of(folder)["status"] == "completed"


def test_n34_what_wandb_takes_for_ctrl_c_ends_no_training(tmp_path, data, fake_wandb):
    fake_wandb.error = KeyboardInterrupt()
    folder = tracked(tmp_path / "run", data, mode="online", steps=2)
    assert train(folder) == 0
    assert "W&B is off for the rest of this attempt (KeyboardInterrupt" in (folder / "train.log").read_text()


def test_wandb_that_is_not_installed_is_said_before_training_and_can_be_mended(tmp_path, data, monkeypatch):
    monkeypatch.setattr("mpadam.training.tracking.importlib.util.find_spec", lambda name: None)
    folder = tracked(tmp_path / "run", data)
    with pytest.raises(ValueError, match="pip install wandb"):
        train(folder)
    assert not (folder / "failure.json").exists()
    assert not (folder / "metrics.jsonl").exists()


def test_t5_offline_wandb_needs_no_network_and_no_key_and_tells_no_secret(tmp_path, data):
    """The real package, in a process without a network, a home or a key; stopped and resumed."""
    pytest.importorskip("wandb")
    plain = make_run(tmp_path / "plain", data, steps=8)
    assert train(plain) == 0
    folder = tracked(tmp_path / "run", data, steps=8)
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "HF_TOKEN": SECRET, "SOME_API_KEY": SECRET}
    environment |= {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}  # nobody answers there
    for arguments, code in ((["--stop-after-minutes", "0"], 75), ([], 0)):
        child = os.fork()
        if child == 0:
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(tmp_path)
            os._exit(main(["train", *arguments, "--run-dir", str(folder)]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    assert "W&B is off" not in (folder / "train.log").read_text()
    assert_same_run(folder, plain)
    run_hash = read_run_file(folder / "run.yaml").spec.hash
    kept = [path.name for path in Path(folder / "wandb").glob("offline-run-*")]
    assert len(kept) == 2
    assert all(name.endswith(f"-{run_hash}") for name in kept)
    assert_nowhere(folder, SECRET)
    assert_nowhere(home, SECRET)
