"""The study on a real one-node Slurm cluster: equal to the local one, and whatever interrupts it, equal in the end.

    .venv/bin/python -m pytest tests/cluster

Needs a throw-away cluster called `lab`, and for some tests the CPU image: a skipped test says what is missing.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import IMAGE
from tests.cluster.lab import (
    NODE,
    Lab,
    bring_back_node,
    interrupt,
    kill_group,
    make_lab,
    numbers,
    pending,
    processes,
    slurm,
    wait_for,
    wait_until_put_back,
)
from tests.workflow.toy import OVERLAY

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]  # waiting for the cluster counts


def finished(lab: Lab, process: subprocess.Popen[str]) -> None:
    """Wait for the study's end, which must be a good one."""
    assert process.wait(timeout=900) == 0, lab.output() + lab.logs()


def assert_equal_and_whole(lab: Lab, reference: Lab) -> None:
    """The run's numbers are the uninterrupted one's; nobody holds its folder; no job is left."""
    assert numbers(lab.results) == numbers(reference.results)
    assert not (lab.run_folder() / "train.lock").exists()
    assert not (lab.run_folder() / "failure.json").exists()
    wait_for(lambda: not lab.jobs(), "an empty queue")


# --- equal -----------------------------------------------------------------------------------------------------------


@pytest.mark.apptainer
def test_the_small_study_through_slurm_and_apptainer_equals_the_local_one(cluster: None, tmp_path: Path) -> None:
    """Bit for bit: data, tuning, training. Its project has a space in its path (S11), its data lie elsewhere."""
    data, image = tmp_path / "the text", tmp_path / "image.sif"
    image.symlink_to(IMAGE)
    small = OVERLAY.replace("seeds: [0, 1]", "seeds: [0]")
    there = make_lab(
        tmp_path / "on a cluster",
        small.replace("path: c4,", f"path: {str(data)!r},") + f"container: {{image: {str(image)!r}}}\n",
    )
    here = make_lab(tmp_path / "local", small)
    shutil.move(there.folder / "c4", data)
    done = there.run()
    assert done.returncode == 0, done.stdout + done.stderr + there.logs()
    wanted = [f"{here.run_folder(name).relative_to(here.folder)}/summary.json" for name in ("adamw", "m-plus-adam")]
    done = here.run("--", *wanted, profile="profiles/local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(there.results) == numbers(here.results)
    assert len(numbers(here.results)) == 4
    for path in there.results.rglob("environment.json"):
        environment = yaml.safe_load(path.read_text())
        assert environment["container"] == str(image)
        assert environment["container_digest"].startswith("sha256:")
        assert environment["slurm"]["SLURM_JOB_ID"]
    kept = [path.parent.parent.name for path in (there.folder / "results/slurm-logs").rglob("*.log")]
    assert kept.count("rule_train") == 2  # though all went well


# --- interrupted -----------------------------------------------------------------------------------------------------


def test_a_job_that_reaches_its_budget_stops_and_the_retry_goes_on(lab: Lab, reference: Lab) -> None:
    """A limit of one minute leaves a budget of none: one update an attempt, and the profile's retry resumes.

    Slurm's own limit is put off, or it would come first on a slow machine: each job waits in the queue until it is.
    """
    hold = ("--config", "cluster={sbatch: --hold}", "--set-resources", "train:runtime=1", "--retries", "1")
    process = lab.start(*hold, "--", lab.target())
    held: set[str] = set()
    for _ in range(2):
        (job,) = wait_for(lambda: set(lab.jobs("PENDING")) - held, "a job in the queue")
        held.add(job)
        slurm("scontrol", "update", f"jobid={job}", "TimeLimit=20")
        slurm("scontrol", "release", job)
    assert process.wait(timeout=600) == 1
    assert lab.said().count("(time is up)") == 2
    assert "resumed from step 1" in lab.said()
    assert not (lab.run_folder() / "summary.json").exists()
    finished(lab, lab.start("--", lab.target()))
    assert "resumed from step 2" in lab.said()
    assert_equal_and_whole(lab, reference)


def test_signal_ahead_of_the_limit_kill_9_of_the_step_and_the_limit_itself(lab: Lab, reference: Lab) -> None:
    """Three of four attempts end so, in this order, and each next one goes on."""
    process = lab.start("--", lab.target())
    lab.wait_for_step(40)
    signalled_ahead_of_the_limit(lab)
    wait_for(lambda: lab.said().count("resumed from step") == 1, "the second attempt")
    assert "(signal SIGUSR1)" in lab.said()
    lab.wait_for_step(240)
    os.kill(lab.training(), signal.SIGKILL)
    wait_for(lambda: "resumed from step 200" in lab.said(), "the third attempt")
    lab.wait_for_step(340)
    hangs_until_the_limit(lab)
    finished(lab, process)
    assert "resumed from step 300" in lab.said()
    assert lab.said().count("resumed from step") == 3
    assert_equal_and_whole(lab, reference)


def signalled_ahead_of_the_limit(lab: Lab) -> None:
    """Leave the job less than two minutes: --signal=USR1@120 comes by itself, within half a minute.

    Training stands still until it is there, so that it cannot be done before.
    """
    os.kill(training := lab.training(), signal.SIGSTOP)
    (job,), (elapsed,) = lab.jobs("RUNNING"), lab.jobs("RUNNING", field="%M")
    slurm("scontrol", "update", f"jobid={job}", f"TimeLimit={int(elapsed.split(':')[-2]) + 2}")
    wait_for(lambda: pending(training, signal.SIGUSR1), "Slurm's signal")
    os.kill(training, signal.SIGCONT)


def hangs_until_the_limit(lab: Lab) -> None:
    """A training that hangs neither keeps its budget nor hears a signal: Slurm kills it at the limit."""
    os.kill(lab.training(), signal.SIGSTOP)
    (job,) = lab.jobs("RUNNING")
    slurm("scontrol", "update", f"jobid={job}", "TimeLimit=1")
    wait_for(lambda: job in lab.jobs("TIMEOUT"), "the time limit")


def test_ctrl_c_then_kill_9_of_snakemake_and_the_documented_recovery(lab: Lab, reference: Lab) -> None:
    """Ctrl-C cancels the jobs, which save and leave no orphan. After kill -9 they train on: cancel by name, unlock."""
    process = lab.start("--", lab.target())
    lab.wait_for_step(40)
    interrupt(process)
    process.wait(timeout=600)
    wait_for(lambda: not lab.jobs(), "an empty queue")
    wait_for(lambda: not processes(lab.folder, "mpadam train --"), "no process of the training left")
    assert "(signal SIGTERM)" in lab.said()
    assert not (lab.run_folder() / "train.lock").exists()
    process = lab.start("--", lab.target())
    wait_for(lambda: "resumed from step" in lab.said(), "the second start")
    (name,) = set(lab.jobs(field="%j"))
    kill_group(process)
    refused = lab.run("--", lab.target())
    assert "LockException" in refused.stdout + refused.stderr
    slurm("scancel", "--name", name)
    wait_for(lambda: not lab.jobs(), "an empty queue")
    assert lab.run("--unlock").returncode == 0
    finished(lab, lab.start("--", lab.target()))
    assert_equal_and_whole(lab, reference)


def test_s9_kill_9_of_slurmd_requeue_and_a_node_that_goes_away(lab: Lab, reference: Lab) -> None:
    """One job, one writer, one result. It outlives Slurm's daemon; put back for another job, or because its node went
    away, it keeps its number and goes on from its checkpoint: sbatch is called once."""
    process = lab.start("--retries", "0", "--", lab.target())
    lab.wait_for_step(40)
    restart_slurmd_after_kill_9()
    (job,) = lab.jobs("RUNNING")
    lab.wait_for_step(140)
    slurm("scontrol", "requeue", job)
    wait_until_put_back(job)
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now")
    wait_for(lambda: lab.said().count("resumed from step") == 1, "the job's second start")
    lab.wait_for_step(340)
    slurm("scontrol", "update", f"nodename={NODE}", "state=down", "reason=test")
    wait_until_put_back(job)
    assert not processes(lab.folder, "mpadam train --")
    bring_back_node()  # and Slurm's two minutes are left to pass: a node that was down may refuse the job before
    finished(lab, process)
    assert lab.said().count("resumed from step") == 2
    assert lab.output().count("has been submitted with SLURM jobid") == 1
    assert_equal_and_whole(lab, reference)


def restart_slurmd_after_kill_9() -> None:
    config = slurm("scontrol", "show", "config")
    pid_file = next(line.split("=")[1].strip() for line in config.splitlines() if line.startswith("SlurmdPidFile"))
    pid = Path(pid_file).read_text().strip()
    os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "slurmd's end")
    subprocess.run(["slurmd"], check=True)


# --- refused ---------------------------------------------------------------------------------------------------------


def test_a_refused_submission_is_said_in_slurms_words(lab: Lab) -> None:
    done = lab.run("--retries", "0", "--config", "cluster={partition: nowhere}", "--", lab.target())
    assert done.returncode == 1
    assert "invalid partition specified: nowhere" in done.stdout + done.stderr
    assert lab.jobs() == []


def test_a_hopeless_run_ends_its_further_attempts_at_once(lab: Lab) -> None:
    """What a failed attempt left (failure.json) ends the next one before anything is trained, and says why."""
    run_hash = yaml.safe_load((lab.run_folder() / "run.yaml").read_text())["hash"]
    failure = {"hash": run_hash, "error": "lr: -1 is below zero", "trace": ""}
    (lab.run_folder() / "failure.json").write_text(json.dumps(failure))
    done = lab.run("--retries", "0", "--", lab.target())
    assert done.returncode == 1
    assert "lr: -1 is below zero (an earlier attempt ended so" in done.stdout + done.stderr
    assert not (lab.run_folder() / "metrics.jsonl").exists()
