"""Training that dies or is killed under Snakemake goes on from its checkpoint and ends as if nothing had happened."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.training_runs import assert_same_run, metrics_of, train
from tests.workflow.toy import SNAKEMAKE, Toy, make_toy

RUN = "nano/1x/bf16-bf16/adamw/seed0"
SUMMARY = f"results/toy/runs/{RUN}/summary.json"
STEP = "    _settle(session, gradients)\n    session.optimizer.step()\n"
AT_STEP_7 = STEP + "    if gradients.step == 7:\n        import os, signal\n\n        {action}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The toy study with its data, and nothing trained: a run of ten steps, a checkpoint after five."""
    toy = make_toy(tmp_path_factory.mktemp("made") / "toy")
    for old, new in {
        "steps_1x: 6": "steps_1x: 10",
        "checkpoint_every: 3": "checkpoint_every: 5",
        "log_every: 2": "log_every: 1",
    }.items():
        toy.edit("toy.yaml", old, new)
    done = toy.snakemake("results/toy/data/manifest.json")
    assert done.returncode == 0, done.stderr
    return toy


def start(toy: Toy, target: str) -> subprocess.Popen[bytes]:
    """`toy.snakemake(target)` in a process group of its own that is not waited for; what it says is lost with it."""
    environment = {**os.environ, "PYTHONPATH": str(toy.folder / "src"), "HOME": str(toy.folder / "home")}
    command = [SNAKEMAKE, "--profile", "profiles/local", "--configfile", "toy.yaml", "--cores", "2", target]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=toy.folder, env=environment, stdout=quiet, stderr=quiet, process_group=0)


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step*"))


def assert_ended_as_if_nothing_had_happened(toy: Toy, *, step: int = 5) -> None:
    """Resumed, and equal in every bit to a run of the same run.yaml that nothing happened to."""
    run, whole = toy.results / "runs" / RUN, (toy.results / "runs" / RUN).with_name("whole")
    whole.mkdir()
    shutil.copy(run / "run.yaml", whole)
    assert train(whole) == 0
    assert f"resumed from step {step}" in (run / "train.log").read_text()
    assert_same_run(run, whole)
    assert [line["step"] for line in metrics_of(run)] == list(range(1, 11))
    assert toy.planned(SUMMARY) == {}


def test_s1_a_job_that_died_at_step_7_resumes_by_the_same_command(made: Toy, tmp_path: Path) -> None:
    toy = made.copy(tmp_path / "toy")
    run, dies = toy.results / "runs" / RUN, AT_STEP_7.format(action="os._exit(1)")
    toy.edit("src/mpadam/training/loop.py", STEP, dies)
    assert toy.snakemake(SUMMARY).returncode != 0
    assert checkpoints(run) == ["step00000005"]
    assert len(metrics_of(run)) == 6
    assert not (run / "summary.json").exists()
    toy.edit("src/mpadam/training/loop.py", dies, STEP)
    done = toy.snakemake(SUMMARY)
    assert done.returncode == 0, done.stderr
    assert_ended_as_if_nothing_had_happened(toy)


def test_s3_after_a_kill_of_snakemake_unlock_and_the_same_command_resume(made: Toy, tmp_path: Path) -> None:
    """The training it leaves behind keeps its run folder to itself until it is gone, too."""
    toy = made.copy(tmp_path / "toy")
    run, meeting = toy.results / "runs" / RUN, tmp_path / "meeting"
    os.mkfifo(meeting)
    waits = AT_STEP_7.format(action=f"open({str(meeting)!r}, 'w').close(); signal.pause()")
    toy.edit("src/mpadam/training/loop.py", STEP, waits)
    snakemake = start(toy, SUMMARY)
    meeting.open().close()  # training has come to step 7
    snakemake.kill()
    snakemake.wait()
    toy.edit("src/mpadam/training/loop.py", waits, STEP)

    holder = json.loads((run / "train.lock").read_text())["pid"]
    try:
        locked = toy.snakemake(SUMMARY)
        assert locked.returncode != 0
        assert "--unlock" in locked.stdout + locked.stderr
        assert toy.snakemake("--unlock").returncode == 0
        assert toy.snakemake(SUMMARY).returncode != 0
        assert f"is being trained by process {holder}" in (toy.results / f"logs/train/{RUN}.log").read_text()
        assert checkpoints(run) == ["step00000005"]
    finally:
        os.kill(holder, signal.SIGKILL)
    done = toy.snakemake(SUMMARY)
    assert done.returncode == 0, done.stderr
    assert_ended_as_if_nothing_had_happened(toy)


def test_n24_ctrl_c_and_a_closed_terminal_save_and_the_same_command_goes_on(made: Toy, tmp_path: Path) -> None:
    """Ctrl-C comes to the whole group, a hangup may come to Snakemake alone. Neither leaves its lock behind."""
    toy = made.copy(tmp_path / "toy")
    run, meeting, woken = toy.results / "runs" / RUN, tmp_path / "meeting", "r, w = os.pipe()"
    woken += "; os.set_blocking(w, False); signal.set_wakeup_fd(w)"
    os.mkfifo(meeting)
    waits = AT_STEP_7.format(action=f"{woken}; open({str(meeting)!r}, 'w').close(); os.read(r, 1)")
    for step, told, number in ((7, os.killpg, signal.SIGINT), (9, os.kill, signal.SIGHUP)):
        toy.edit("src/mpadam/training/loop.py", STEP, waits.replace("step == 7", f"step == {step}"))
        snakemake = start(toy, SUMMARY)
        meeting.open().close()  # training has come to the step
        told(snakemake.pid, number)
        assert snakemake.wait() == 1
        toy.edit("src/mpadam/training/loop.py", waits.replace("step == 7", f"step == {step}"), STEP)
        assert checkpoints(run)[-1] == f"step{step:08}"
    done = toy.snakemake(SUMMARY)
    assert done.returncode == 0, done.stderr
    assert_ended_as_if_nothing_had_happened(toy, step=9)
