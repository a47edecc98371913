"""A toy project on a real one-node Slurm cluster, and what a test does to it. Nothing here sleeps to be in time: each
wait is for something to be true, and gives up after a stated while."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.workflow.toy import OVERLAY, ROOT, SNAKEMAKE, make_toy

#: The limit Snakemake itself is held to: SIGINT makes it cancel its jobs, and SIGKILL follows if it does not end.
WRAPPED = ("timeout", "-s", "INT", "-k", "200")
#: The executor waits 10 s longer after each look at its jobs that found none completed. Here it looks every 2 s.
HURRY = """\
import sys

if "--profile" in sys.orig_argv:
    import asyncio

    sleep = asyncio.sleep
    asyncio.sleep = lambda seconds, result=None: sleep(min(seconds, 2), result)
"""


def wait_for(condition: Callable[[], Any], what: str, *, seconds: float = 300.0) -> Any:
    """What `condition` returns once it is true; fails after that many seconds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"after {seconds:.0f} s still not: {what}"
        time.sleep(0.2)
    return found


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


NODE = os.uname().nodename.partition(".")[0]


def bring_back_node() -> None:
    """Wait until the node takes jobs; a node that is down does so when told, or when its daemon answers again."""

    def takes_jobs() -> bool:
        if {"down", "drained", "draining"} & {slurm("sinfo", "--noheader", "-n", NODE, "-o", "%T").strip(" *\n")}:
            subprocess.run(["scontrol", "update", f"nodename={NODE}", "state=resume"], check=False, capture_output=True)
            return False
        return True

    wait_for(takes_jobs, "a node that takes jobs")


def wait_until_put_back(job: str) -> None:
    """Wait until a job is in the queue again and nothing is left of its last start.

    Slurm holds it there for two minutes for the second reason: the node refuses a job of which a step still runs, which
    is then held for good.
    """
    wait_for(lambda: slurm("squeue", "--noheader", "--jobs", job, "--format=%T").strip() == "PENDING", "the queue")
    wait_for(lambda: not [line for line in command_lines() if line.startswith(f"slurmstepd: [{job}.")], "no old step")


def command_lines() -> list[str]:
    """Of all processes."""
    return [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]


def pending(pid: int, number: signal.Signals) -> bool:
    """Whether a stopped process has a signal waiting for it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def processes(folder: Path, word: str) -> list[int]:
    """Processes with `word` in their command line that work in `folder`."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if word in " ".join(process.cmdline()) and process.cwd() == str(folder):
                found.append(process.pid)
    return found


@dataclass(frozen=True)
class Lab:
    """A toy project whose study is submitted to Slurm."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results" / "toy"

    def jobs(self, *states: str, field: str = "%i") -> list[str]:
        """Numbers (or another field) of this project's jobs in these states, or of those queued or running.

        Another project's jobs on the same cluster are nobody's business here.
        """
        wanted = ",".join(states or ("PENDING", "RUNNING", "COMPLETING", "REQUEUED"))
        lines = slurm("squeue", "--noheader", f"--format={field}|%Z", f"--states={wanted}").splitlines()
        return [line.partition("|")[0] for line in lines if line.partition("|")[2] == str(self.folder)]

    def cancel_all(self) -> None:
        """Cancel what is left in the queue, and wait until it is gone."""
        if left := self.jobs():
            subprocess.run(["scancel", *left], check=False)
        wait_for(lambda: not self.jobs(), "an empty queue")

    def training(self) -> int:
        """The process of the one training that runs; the shells around it are not meant."""
        found = processes(self.folder, "mpadam train --")
        (pid,) = (pid for pid in found if "python" in psutil.Process(pid).cmdline()[0])
        return pid

    def run_folder(self, optimizer: str = "adamw", seed: int = 0) -> Path:
        return self.results / f"runs/nano/1x/bf16-bf16/{optimizer}/seed{seed}"

    def environment(self) -> dict[str, str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        path = [str(self.folder / "hurry"), str(self.folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HOME": str(home), "OMP_NUM_THREADS": "1"}

    def command(self, *arguments: str, profile: str = "slurm", seconds: int = 900) -> list[str]:
        two = ("--jobs" if profile == "slurm" else "--cores", "2")
        return [*WRAPPED, str(seconds), SNAKEMAKE, "--profile", profile, "--configfile", "toy.yaml", *two, *arguments]

    def run(self, *arguments: str, profile: str = "slurm") -> subprocess.CompletedProcess[str]:
        """Run the study to its end."""
        return subprocess.run(
            self.command(*arguments, profile=profile), cwd=self.folder, env=self.environment(), capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the study in a process group of its own."""
        with (self.folder / "snakemake.txt").open("a") as output:
            return subprocess.Popen(
                self.command(*arguments), cwd=self.folder, env=self.environment(), stdout=output,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip

    def output(self) -> str:
        return (self.folder / "snakemake.txt").read_text()

    def logs(self) -> str:
        """All logs of the trainings and of Slurm, for a failing test to show."""
        files = [*self.results.rglob("*.log"), *(self.folder / "results/slurm-logs").rglob("*.log")]
        return "\n".join(f"--- {path}\n{path.read_text()}" for path in sorted(files))

    def trained_steps(self, optimizer: str = "adamw", seed: int = 0) -> int:
        """The last update that the metrics of a run know."""
        path = self.run_folder(optimizer, seed) / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[-1])["step"] if lines else 0

    def target(self) -> str:
        """The run of the long study, as Snakemake calls it."""
        return str(self.run_folder().relative_to(self.folder) / "summary.json")

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: self.trained_steps() >= step, f"step {step}:\n{self.output()}")

    def said(self, optimizer: str = "adamw", seed: int = 0) -> str:
        """train.log of a run, over all attempts."""
        return (self.run_folder(optimizer, seed) / "train.log").read_text()


def make_lab(folder: Path, overlay: str = OVERLAY) -> Lab:
    make_toy(folder)
    shutil.copy(ROOT / "slurm", folder / "slurm", follow_symlinks=False)
    (folder / "toy.yaml").write_text(overlay)
    (folder / "hurry").mkdir()
    (folder / "hurry/sitecustomize.py").write_text(HURRY)
    return Lab(folder)


def numbers(results: Path) -> dict[str, Any]:
    """Everything that trainings computed below `results`: path -> content, without when, how long and where."""
    found: dict[str, Any] = {}
    for path in sorted(results.rglob("metrics.jsonl")):
        summary = json.loads((path.parent / "summary.json").read_text())
        metrics = [json.loads(line) for line in path.read_text().splitlines()]
        found[str(path.parent.relative_to(results))] = (
            {key: summary[key] for key in ("hash", "status", "val_loss", "val_tokens", "steps")},
            [{key: value for key, value in line.items() if key != "tokens_per_s"} for line in metrics],
        )
    return found


def interrupt(process: subprocess.Popen[str]) -> None:
    """One SIGINT, as from one Ctrl-C, to the Snakemake of a process that `Lab.start` started.

    `timeout` would pass it on twice, to Snakemake and to its group, and a second one ends Snakemake before scancel.
    """
    (snakemake,) = psutil.Process(process.pid).children()
    snakemake.send_signal(signal.SIGINT)


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a process that `Lab.start` started, and to those of its group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
