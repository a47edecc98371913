"""For all tests: signals that were ignored when pytest was started (`nohup make test`, a background job of a shell) are
not ignored by the tests and by what they start. Signals that stay ignored have tests of their own.

Code that tests compile for an older processor (`ATEN_CPU_CAPABILITY`) has a cache of its own: torch's would give them
that of this one, which has other vectors."""

import os
import signal
import tempfile

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
