"""Signals to a job step's first process reach the training below it, and nothing that would die of them."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mpadam.workflow.signals import end_with_trainings, handles, in_step, pass_on

#: Like a job step: it forwards, and starts a shell that starts a process with handlers, and one without.
STEP = """
import signal, subprocess, sys
from mpadam.workflow.signals import forward_signals
forward_signals()
signal.signal(signal.SIGTERM, lambda *_: None)  # as Snakemake does, after the Snakefile was parsed
sys.exit(subprocess.Popen(["bash", "-c", sys.argv[1]]).wait())
"""
TRAINING = """
import signal, sys, time
def note(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGUSR1, note)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_the_step_reaches_the_training_below_a_shell(number: signal.Signals) -> None:
    script = f"sleep 1000 & {sys.executable} -c '{TRAINING}'; code=$?; kill $!; echo shell; exit $code"
    process = subprocess.Popen([sys.executable, "-c", STEP, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert said.split() == [number.name, "shell"]  # training first, and the shell lived to say so
    assert process.returncode == 75


#: Like Snakemake on one machine: its jobs are below it, and it waits for them when it is interrupted.
LOCAL = """
import subprocess, sys
from mpadam.workflow.signals import end_with_trainings
end_with_trainings(lambda: sys.argv[2] == "here")
training = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
try:
    training.wait()
except KeyboardInterrupt:
    print("interrupted", training.wait(), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_n24_a_signal_to_snakemake_alone_ends_the_training_below_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", LOCAL, TRAINING, "here"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    said, _ = process.communicate()
    assert said == "SIGTERM\ninterrupted 75\n"


def test_n24_jobs_of_a_cluster_outlive_a_closed_terminal() -> None:
    command = [sys.executable, "-c", LOCAL, "print('ready', flush=True); input()", "elsewhere"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    assert process.wait() == -signal.SIGHUP
    process.communicate()  # its job has been waiting for the end of its input, and ends now


def test_n24_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        end_with_trainings(lambda: True)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGINT, interrupted)


def test_only_processes_with_a_handler_are_told() -> None:
    plain = subprocess.Popen(["sleep", "1000"])
    training = subprocess.Popen([sys.executable, "-c", TRAINING], stdout=subprocess.PIPE, text=True)
    assert training.stdout is not None
    training.stdout.readline()
    try:
        assert handles(training.pid, signal.SIGUSR1)
        assert not handles(plain.pid, signal.SIGUSR1)
        told = pass_on(signal.SIGUSR1, [psutil.Process(plain.pid), psutil.Process(training.pid)])
        assert told == [training.pid]
        assert training.wait(timeout=60) == 75
        assert plain.poll() is None
    finally:
        plain.kill()
        training.kill()
        plain.wait()
        training.communicate()


def test_processes_that_ended_meanwhile_are_passed_over() -> None:
    ended = subprocess.Popen(["true"])
    process = psutil.Process(ended.pid)
    ended.wait()
    assert pass_on(signal.SIGUSR1, [process]) == []


@pytest.mark.parametrize(
    ("step", "expected"),
    [("0", True), ("17", True), ("4294967291", False), ("4294967290", False), ("", False), ("batch", False)],
)
def test_a_step_has_a_number_and_the_batch_script_is_none(step: str, expected: bool) -> None:
    assert in_step({"SLURM_STEP_ID": step}) is expected
    assert in_step({}) is False


def test_the_module_imports_no_torch() -> None:
    code = "import sys\nfrom mpadam.workflow import container, resources, signals\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout == "False\n"
