"""A toy project that is submitted to a Slurm made of stubs: each writes its arguments down.

The stubs stand first on the path and leave none of Slurm's own commands to be found behind them, so a test sees the
same on a machine without Slurm, with one that runs, and with one whose daemons are down.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.workflow.toy import ROOT, SNAKEMAKE, make_toy

#: sbatch numbers its jobs. squeue gives the k-th job the k-th list of `states` (the last list to all further jobs): the
#: next state each time it is asked, then the last.
STUB = """\
#!{python} -IS
import fcntl, json, pathlib, sys
folder = pathlib.Path({folder!r})
name = pathlib.Path(sys.argv[0]).name
with (folder / "calls.jsonl").open("a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)  # jobs are submitted at the same time, and each has a number of its own
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
    file.flush()
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
answer = json.loads((folder / "answers.json").read_text())
if name in answer["failing"]:
    sys.exit(answer["failing"][name])
jobs = [str(100 + number) for number in range(sum(call[0] == "sbatch" for call in calls))]
if name == "sbatch":
    print(jobs[-1])
if name == "squeue":
    asked = sum(call[0] == "squeue" for call in calls)
    for number, job in enumerate(jobs):
        states = answer["states"][min(number, len(answer["states"]) - 1)]
        print(f"{{job}}|{{states[min(asked, len(states)) - 1]}}")
if name == "scontrol":
    print("MinJobAge               = 300 sec")
"""
#: Every command that Slurm gives its users, whether this version of the executor calls it or not: one that is missing
#: here (sshare, which checks accounts) is Slurm's own where Slurm is installed.
COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab", "sdiag", "sinfo",
    "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger",
)  # fmt: skip


#: The executor waits 10 s longer after each look at its jobs that found none completed, and once more when it ends.
HURRY = """\
import asyncio

sleep = asyncio.sleep
asyncio.sleep = lambda seconds, result=None: sleep(min(seconds, 0.5), result)
"""


@dataclass(frozen=True)
class StubbedSlurm:
    """A toy project (its folder) and the stubs next to it."""

    project: Path
    stubs: Path

    def answer(self, *states: list[str], failing: dict[str, str] | None = None) -> None:
        """States that squeue gives each job; failing: command -> what it ends with on standard error."""
        (self.stubs / "answers.json").write_text(json.dumps({"states": states, "failing": failing or {}}))

    def calls(self, command: str) -> list[list[str]]:
        """Arguments of each call of a command so far."""
        path = self.stubs / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == command]

    def snakemake(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """As a user types it, with an empty HOME; it is in a hurry."""
        home = self.project / "home"
        home.mkdir(exist_ok=True)
        path = [str(self.stubs), str(self.project / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "XDG_CONFIG"))}
        env |= {
            "PYTHONPATH": os.pathsep.join(path),
            "PATH": f"{self.stubs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
        }
        command = [SNAKEMAKE, "--profile", "slurm", *arguments]
        return subprocess.run(
            command, cwd=cwd or self.project, env=env, capture_output=True, text=True, check=False, timeout=200
        )


def make_stubbed(folder: Path) -> StubbedSlurm:
    """A project in `folder` whose data are there and whose jobs go nowhere."""
    project, stubs = folder / "project", folder / "stubs"
    make_toy(project)
    shutil.copy(ROOT / "slurm", project / "slurm", follow_symlinks=False)
    stubs.mkdir()
    for name in COMMANDS:
        (stubs / name).write_text(STUB.format(python=sys.executable, folder=str(stubs)))
        (stubs / name).chmod(0o755)
    (stubs / "sitecustomize.py").write_text(HURRY)
    stubbed = StubbedSlurm(project, stubs)
    stubbed.answer(["FAILED"])
    return stubbed


def prepare_run(project: Path, study: str, model: str, *, optimizer: str = "adamw", seed: int = 0) -> str:
    """Files that a run's training waits for, made by hand in their order; returns its summary's path."""
    root = Path("results") / study
    run = root / f"runs/{model}/1x/bf16-bf16/{optimizer}/seed{seed}"
    tuned = "350m" if model == "1b" else model
    for path in (root / "data/manifest.json", root / f"tuning/{tuned}/bf16-bf16/{optimizer}/selected.yaml",
                 run / "run.yaml"):  # fmt: skip
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        if not (project / path).exists():
            (project / path).write_text("{}\n")
    return str(run / "summary.json")


def flags(call: list[str], *, project: Path) -> list[str]:
    """The arguments of sbatch, but for the command it wraps; what differs from run to run has a word in its place."""
    kept = [argument for argument in call if not argument.startswith("--wrap=")]
    text = "\n".join(kept).replace(str(project), "PROJECT")
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text).split("\n")
