"""For all tests: signals that were ignored when pytest was started (`nohup make test`, a background job of a shell) are
not ignored by the tests and by what they start. Signals that stay ignored have tests of their own.

Code that tests compile for an older processor (`ATEN_CPU_CAPABILITY`) has a cache of its own: torch's would give them
that of this one, which has other vectors.

Modules of `benchmarks/` are imported by name, as its scripts do.

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

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

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
