"""The scheduler of a long study does not look at its jobs more often the more of them have ended."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.workflow.toy import ROOT, SNAKEMAKE

JOBS = """\
import threading
{start}
rule all:
    input: expand("{{i}}", i=range(8))
rule job:
    output: "{{i}}"
    shell: "echo > {{output}}"
onsuccess:
    print("timers:", sum(isinstance(thread, threading.Timer) for thread in threading.enumerate()))
"""


def timers(folder: Path, start: str) -> int:
    (folder / "Snakefile").write_text(JOBS.format(start=start))
    done = subprocess.run(
        [SNAKEMAKE, "--cores", "1", "--max-jobs-per-timespan", "100/3s"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("timers:")[1])


@pytest.mark.parametrize(
    "start",
    [
        "from mpadam.workflow.scheduler import one_timer; one_timer()",
        pytest.param("", marks=pytest.mark.xfail(strict=True, reason="if it passes, one_timer is needed no more")),
    ],
    ids=["ours", "snakemake"],
)
def test_one_timer_however_many_jobs_have_ended(start: str, tmp_path: Path) -> None:
    assert timers(tmp_path, start) <= 1


def test_the_workflow_asks_for_it() -> None:
    assert "one_timer()" in (ROOT / "workflow/rules/common.smk").read_text()
