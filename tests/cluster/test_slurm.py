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
    kill_group,
    make_lab,
    numbers,
    processes,
    slurm,
    wait_for,
)
from tests.workflow.toy import OVERLAY

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]  # waiting for the cluster counts


def finished(lab: Lab, process: subprocess.Popen[str]) -> None:
    """Wait for the study's end, which must be a good one."""
    assert process.wait(timeout=300) == 0, lab.output() + lab.logs()


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
    there = make_lab(
        tmp_path / "on a cluster",
        OVERLAY.replace("path: c4,", f"path: {str(data)!r},") + f"container: {{image: {str(image)!r}}}\n",
    )
    here = make_lab(tmp_path / "local")
    shutil.move(there.folder / "c4", data)
    done = there.run()
    assert done.returncode == 0, done.stdout + done.stderr + there.logs()
    done = here.run(profile="profiles/local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(there.results) == numbers(here.results)
    assert len(numbers(here.results)) == 6
    for path in there.results.rglob("environment.json"):
        environment = yaml.safe_load(path.read_text())
        assert environment["container"] == str(image)
        assert environment["container_digest"].startswith("sha256:")
        assert environment["slurm"]["SLURM_JOB_ID"]
    kept = [path.parent.parent.name for path in (there.folder / "results/slurm-logs").rglob("*.log")]
    assert kept.count("rule_train") == 4  # though all went well


# --- interrupted -----------------------------------------------------------------------------------------------------


def test_a_job_that_reaches_its_budget_stops_and_the_retry_goes_on(lab: Lab, reference: Lab) -> None:
    """A limit of one minute leaves a budget of none: one update an attempt, and the profile's retry resumes."""
    done = lab.run("--set-resources", "train:runtime=1", "--retries", "1", "--", lab.target())
    assert done.returncode == 1
    assert lab.said().count("(time is up)") == 2
    assert "resumed from step 1" in lab.said()
    assert not (lab.run_folder() / "summary.json").exists()
    finished(lab, lab.start("--", lab.target()))
    assert "resumed from step 2" in lab.said()
    assert_equal_and_whole(lab, reference)


def test_slurms_signal_saves_and_kill_9_goes_back_to_a_checkpoint(lab: Lab, reference: Lab) -> None:
    """What --signal=USR1@120 sends ahead of the limit, sent at once; then kill -9 of the second attempt's training."""
    process = lab.start("--", lab.target())
    lab.wait_for_step(40)
    slurm("scancel", "--signal=USR1", *lab.jobs("RUNNING"))
    wait_for(lambda: "(signal SIGUSR1)" in lab.said(), "the signal in train.log")
    wait_for(lambda: lab.said().count("resumed from step") == 1, "the second attempt")
    lab.wait_for_step(240)
    for pid in processes(lab.folder, "mpadam train --"):
        os.kill(pid, signal.SIGKILL)
    finished(lab, process)
    assert lab.said().count("resumed from step") == 2
    assert_equal_and_whole(lab, reference)


def test_ctrl_c_cancels_the_jobs_which_save_and_leave_no_orphan(lab: Lab, reference: Lab) -> None:
    """Snakemake calls scancel; SIGTERM reaches training, which saves."""
    process = lab.start("--", lab.target())
    lab.wait_for_step(40)
    os.kill(process.pid, signal.SIGINT)
    process.wait(timeout=120)
    wait_for(lambda: not lab.jobs(), "an empty queue")
    wait_for(lambda: not processes(lab.folder, "mpadam train --"), "no process of the training left")
    assert "(signal SIGTERM)" in lab.said()
    assert not (lab.run_folder() / "train.lock").exists()
    finished(lab, lab.start("--", lab.target()))
    assert "resumed from step" in lab.said()
    assert_equal_and_whole(lab, reference)


def test_kill_9_of_snakemake_and_the_documented_recovery(lab: Lab, reference: Lab) -> None:
    """Its job trains on. The recovery of docs/cluster.md: cancel by name, unlock, start again."""
    process = lab.start("--", lab.target())
    lab.wait_for_step(140)
    (name,) = set(lab.jobs(field="%j"))
    kill_group(process)
    refused = lab.run("--", lab.target())
    assert "LockException" in refused.stdout + refused.stderr
    slurm("scancel", "--name", name)
    wait_for(lambda: not lab.jobs(), "an empty queue")
    assert lab.run("--unlock").returncode == 0
    finished(lab, lab.start("--", lab.target()))
    assert_equal_and_whole(lab, reference)


def test_kill_9_of_slurmd(lab: Lab, reference: Lab) -> None:
    """Jobs outlive Slurm's daemon; started again it finds them."""
    process = lab.start("--", lab.target())
    lab.wait_for_step(40)
    config = slurm("scontrol", "show", "config")
    pid_file = next(line.split("=")[1].strip() for line in config.splitlines() if line.startswith("SlurmdPidFile"))
    os.kill(int(Path(pid_file).read_text()), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{Path(pid_file).read_text().strip()}").exists(), "slurmd's end")
    subprocess.run(["slurmd"], check=True)
    finished(lab, process)
    assert_equal_and_whole(lab, reference)


def test_s9_a_node_that_goes_away_gives_one_job_one_writer_one_result(lab: Lab, reference: Lab) -> None:
    """Slurm puts the job back under its number, and it goes on from its checkpoint: sbatch is called once."""
    process = lab.start("--retries", "0", "--", lab.target())
    lab.wait_for_step(140)
    (job,) = lab.jobs("RUNNING")
    slurm("scontrol", "update", f"nodename={NODE}", "state=down", "reason=test")
    wait_for(lambda: lab.jobs("PENDING") == [job], "the job in the queue again")
    wait_for(lambda: not processes(lab.folder, "mpadam train --"), "the old training's end")
    bring_back_node()
    finished(lab, process)
    assert lab.output().count("has been submitted with SLURM jobid") == 1
    assert "resumed from step" in lab.said()
    assert_equal_and_whole(lab, reference)


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
