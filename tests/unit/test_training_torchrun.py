"""Real processes under torchrun and under `mpadam train --processes`: two jobs on one node, signals, resume (T4)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training_ranks import run_ranks, train_on
from training_runs import StopAfter, make_data, make_run, metrics_of

from mpadam.cli import main
from mpadam.study.spec import read_run_file
from mpadam.training import launch as launching
from mpadam.training.checkpoint import newest

ENDLESS = 1_000_000
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mpadam"]
PROCESSES = [sys.executable, "-m", "mpadam"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def start():
    """Starts a command; what still runs after the test is killed."""
    started = []

    def start(command):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def first_step(process):
    """Wait until the training has said that its first step is done."""
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("step 1/"):
            return
    raise AssertionError("".join(said))


def stopped(folder):
    """The step after which a training stopped; the folder is as it has to be then."""
    last = (folder / "train.log").read_text().splitlines()[-1]
    step = int(last.split("stopped after step ")[1].split()[0])
    assert [line["step"] for line in metrics_of(folder)] == list(range(1, step + 1))
    found = newest(folder / "checkpoints", run_hash=read_run_file(folder / "run.yaml").spec.hash)
    assert found.progress.step == step
    assert not (folder / "train.lock").exists()
    return step


@pytest.mark.slow
def test_t4_two_jobs_on_one_node_stopped_by_signals_and_resumed(tmp_path, data, start):
    """One by torchrun and SIGINT, one by --processes and SIGUSR1 and SIGHUP (N24); then another step on top."""
    options = {"steps": ENDLESS, "evaluate_every": None, "name": "m-plus-adam-sr"}
    by_torchrun, by_processes = (
        make_run(tmp_path / name, data, checkpoint_every=ENDLESS, **options) for name in ("torchrun", "processes")
    )
    first = start([*TORCHRUN, "train", "--run-dir", str(by_torchrun)])
    second = start([*PROCESSES, "train", "--processes", "2", "--run-dir", str(by_processes)])
    for process in (first, second):
        first_step(process)
    for process, number in ((first, signal.SIGINT), (second, signal.SIGUSR1), (second, signal.SIGHUP)):
        process.send_signal(number)
    first.communicate()
    second.communicate()
    assert first.returncode == 1  # torchrun's own: it knows no other
    assert second.returncode == 75
    stopped(by_torchrun)
    step = stopped(by_processes)

    whole = make_run(tmp_path / "whole", data, **options)
    assert run_ranks(2, lambda ranks: train_on(ranks, by_processes, stop=StopAfter(1))) == [75, 75]
    assert stopped(by_processes) == step + 1
    run_ranks(2, lambda ranks: train_on(ranks, whole, stop=StopAfter(step + 1)))
    assert metrics_of(whole) == metrics_of(by_processes)
    both = min(len(metrics_of(by_torchrun)), step + 1)
    assert metrics_of(by_torchrun)[:both] == metrics_of(whole)[:both]


@pytest.mark.parametrize("code", [2, 3, 75])
def test_the_exit_code_is_the_trainings(code, monkeypatch):
    """The processes are a program that ends with that code."""
    program = f"import sys; assert sys.argv[1:] == ['train', '--run-dir', 'D', '--replace']; sys.exit({code})"
    monkeypatch.setattr(launching, "MODULE", ("-c", program))
    assert main(["train", "--processes", "2", "--replace", "--run-dir", "D"]) == code


def test_processes_are_not_started_twice(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert main(["train", "--processes", "2", "--run-dir", "D"]) == 2
    assert "torchrun has started the processes already" in capsys.readouterr().err
    assert main(["train", "--processes", "0", "--run-dir", "D"]) == 2
    assert Path("D").exists() is False
