"""For all tests: signals that were ignored when pytest was started (`nohup make test`, a background job of a shell) are
not ignored by the tests and by what they start. Signals that stay ignored have tests of their own.

Code that tests compile for an older processor (`ATEN_CPU_CAPABILITY`) has a cache of its own: torch's would give them
that of this one, which has other vectors.

Threads of OpenMP that have nothing to do sleep (`OMP_WAIT_POLICY`): by default they wait in loops, and where there are
more threads than processors, as with two workers on two, those take the time of the threads that are waited for. The
number of threads, and so every bit, stays as it is.

Modules of `benchmarks/` are imported by name, as its scripts do, and so are the tiny studies of the unit tests
(tests/unit/training_runs.py), which the golden tests share.

The longest tests start first. `make test` has two workers: each is given one half of the tests and steals from the end
of the other's, so each half begins with long tests and ends with short ones, and both workers end together. Long are
all files of tests/workflow, and those with a test that is marked `slow`; they stay whole, since their tests share
fixtures.

A worker of pytest-xdist that dies says only which test it ran: here the report says by which signal it died, and where.
"""

import faulthandler
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parents[1] / "benchmarks"), str(Path(__file__).parent / "unit")]

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if _capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    os.environ.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}_{_capability}"
    )

for _number, _handler in {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.hookimpl(trylast=True)  # of the tests that are left
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    workflow = [item for item in items if item.path.parent.name == "workflow"]
    others = [item for item in items if item.path.parent.name != "workflow"]
    long, short = ([item for item in others if (item.path in slow) == wanted] for wanted in (True, False))
    cut = max(0, len(items) // 2 - len(workflow))
    items[:] = [*workflow, *short[:cut], *long, *short[cut:]]


def _last_words(run: str, worker: str) -> Path:
    return Path(tempfile.gettempdir()) / f"pytest-{run}-{worker}.txt"


@pytest.hookimpl(trylast=True)  # after pytest's own, whose stack goes to a terminal and is lost between the dots
def pytest_configure(config: pytest.Config) -> None:
    if (worker := getattr(config, "workerinput", None)) is None:
        return
    path = _last_words(worker["testrunuid"], worker["workerid"])
    file = path.open("w")
    faulthandler.enable(file=file)

    def leave() -> None:
        faulthandler.disable()
        file.close()
        path.unlink(missing_ok=True)

    config.add_cleanup(leave)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: Any) -> None:
    code = report.node.gateway._io.popen.wait()  # its pipe is closed
    ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    path = _last_words(report.node.workerinput["testrunuid"], report.node.workerinput["workerid"])
    stack = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    report.longrepr = f"{report.longrepr}\nit ended {ended}\n{stack}"
