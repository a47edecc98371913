"""For all tests: signals that were ignored when pytest was started (`nohup make test`, a background job of a shell) are
not ignored by the tests and by what they start. Signals that stay ignored have tests of their own."""

import signal

for _number, _handler in {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)
