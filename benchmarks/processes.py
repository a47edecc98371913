"""CPU time of processes of their own: unlike the time on the wall, much the same on a machine that others use."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """cpu_seconds: user and system time, of the process and of those it started and waited for.  output: its stdout."""

    cpu_seconds: float
    output: str


def run(command: list[str], cwd: Path | None = None, **environment: str) -> Ended:
    """Run a command with one thread. Ends this process, with what it said last, where it does not end well."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd, env=settings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        sys.exit(f"{shlex.join(command)} ended with {ended.returncode}:\n{ended.stdout[-500:]}\n{ended.stderr[-2000:]}")
    return Ended(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, ended.stdout)
