"""Passes Slurm's signals on to the training inside a job step.

Slurm signals a step's first process, which is Snakemake; with proctrack/cgroup nothing below it, and the training is
four processes below. The Snakefile calls `forward_signals` when it is parsed inside a step: SIGUSR1 (sent ahead of the
time limit, --signal=USR1@seconds) and SIGTERM (scancel, preemption, the limit itself) then reach every descendant that
has a handler of its own. Others, like the shells between, would only die of them.

    forward_signals() if in_step(os.environ) else None
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType

import psutil

FORWARDED = (signal.SIGUSR1, signal.SIGTERM)
#: Step numbers from here on are Slurm's own: batch script, interactive step, external step.
FIRST_SPECIAL_STEP = 0xFFFF_FFF0
#: Apptainer's parent process passes signals on itself, and a process that hears of it twice may be killed.
SKIPPED = frozenset({"apptainer", "starter", "starter-suid", "srun"})


def in_step(environment: Mapping[str, str]) -> bool:
    """Whether this process was started by srun: its step has a number."""
    step = environment.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < FIRST_SPECIAL_STEP


def end_with_trainings(trains_here: Callable[[], bool]) -> None:
    """Let Ctrl-C and a closed terminal (SIGHUP) end Snakemake and the trainings below it, which save.

    By itself Snakemake waits on SIGINT until its jobs are done, unless the terminal has told them too; SIGHUP ends it
    at once and leaves its working folder locked. A signal that is ignored, as under `nohup`, stays ignored.

    trains_here: whether jobs run below this process. Those of a cluster go on after a SIGHUP, as they always did.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and not trains_here():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        # not the signal itself: a training may have had it already, and ends at once when it comes again
        pass_on(signal.SIGTERM, psutil.Process().children(recursive=True))
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def forward_signals() -> threading.Thread:
    """Start passing signals on to the descendants of this process; to be called in its main thread.

    A wake-up file descriptor notes each signal as it arrives, whatever handler is installed now or later (Snakemake has
    one of its own for SIGTERM), and a thread reads it: the main thread may be waiting. SIGUSR1 gets a handler that does
    nothing, because without one it would end this process.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_forward, args=(reader,), name="signal-forwarder", daemon=True)
    thread.start()
    return thread


def _forward(reader: int) -> None:
    while numbers := os.read(reader, 64):
        for number in numbers:
            if number in FORWARDED:
                pass_on(signal.Signals(number), psutil.Process().children(recursive=True))


def pass_on(number: signal.Signals, processes: Iterable[psutil.Process]) -> list[int]:
    """Send a signal to those processes that handle it; returns their numbers."""
    told = []
    for process in processes:
        try:
            if process.name() not in SKIPPED and handles(process.pid, number):
                process.send_signal(number)
                told.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue  # it ended meanwhile
    return told


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (the mask `SigCgt` of /proc/PID/status)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
