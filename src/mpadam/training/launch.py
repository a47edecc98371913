"""Starts the processes of one training on this machine: `mpadam train --processes N`.

It is torchrun's agent, with a port of its own for each job (so that several share a node), and four differences: every
signal that asks to stop is passed on, where torchrun would die of some and leave its processes behind; a second signal
is not an error, but passed on too; the processes get minutes instead of 30 s to save; and the exit code is the
training's (torchrun knows only 0 and 1).
"""

import os
import signal
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import psutil

from mpadam.exits import EXIT_STOPPED
from mpadam.training.ranks import TORCHRUN
from mpadam.training.stopping import Stopper, catch

SECONDS_TO_SAVE = 600  # a scheduler kills earlier if it wants to
MODULE = ("-m", "mpadam")
UNUSED_SIGNAL = "SIGVTALRM"  # the agent wants to handle one, and takes over whatever was done with it before


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `mpadam train ARGUMENTS` in so many processes and wait for them; returns the exit code of the training.

    After a signal it is 75: whatever the processes came to, the same command goes on from the last checkpoint.
    Raises ValueError if this process is itself one of several that torchrun has started.
    """
    if TORCHRUN in os.environ:
        raise ValueError("--processes within torchrun: leave it out, torchrun has started the processes already")
    with Stopper() as early:  # the next lines take seconds
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",  # a free port
            max_restarts=0,
            signals_to_handle=UNUSED_SIGNAL,
            shutdown_timeout=SECONDS_TO_SAVE,
        )
        catch(_pass_on)
        if early.reason:
            return EXIT_STOPPED
        try:
            elastic_launch(config, sys.executable)(*MODULE, "train", *arguments)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            return max(failure.exitcode, 1)  # below 0: killed by a signal
        except SignalException:
            return EXIT_STOPPED
    return 0


def _pass_on(number: int, _frame: FrameType | None) -> None:
    """Let the agent send the signal to its processes and wait for them; those that follow it sends itself."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    catch(_pass_on_again)
    raise SignalException(f"signal {signal.Signals(number).name}", sigval=signal.Signals(number))


def _pass_on_again(number: int, _frame: FrameType | None) -> None:
    """Each process decides whether this is the same request or the wish to end at once (`stopping`)."""
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
