"""What a person sees while the workflow runs: one line that moves, errors in full, last words. A plugin of Snakemake.

`logger: [mpadam]` in a profile, or `snakemake --logger mpadam ...`. On a terminal the line is drawn again twice a
second; elsewhere (CI, a file) it is written every half minute. Snakemake's own output goes to its log below
`.snakemake/log` as always. It is shown here instead of the line on a dry run, and with any of the options that ask for
more or less of it: --printshellcmds, --verbose, --debug-dag, --quiet.

Snakemake imports this package at every start, so what draws on a terminal is imported when it is needed, and it reads
the files of --configfile before any line of the workflow: what it says of one that it cannot read is replaced here.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from snakemake.common import NOTHING_TO_BE_DONE_MSG, configfile
from snakemake.logging import show_logs
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_mpadam.progress import Job, Planned, Progress, elapsed
from snakemake_logger_plugin_mpadam.screen import Screen

#: Snakemake's own words that are shown too: nothing has to run, or somebody wants it to stop.
INTERRUPTED = "Terminating processes on user request"
SHOWN = (NOTHING_TO_BE_DONE_MSG, INTERRUPTED, "Will exit after finishing")
#: What it says at the end when jobs have failed; the last words here say which.
LEFT_OUT = ("Exiting because a job execution failed", "WorkflowError:\nAt least one job did not complete")
#: What it says at each start with --configfile or --config, and nobody has to know.
NOISE = "Config file "
#: Why a job failed, without its command, which may be pages long and is in Snakemake's log.
REASON = re.compile(r"RuleException:\nCalledProcessError in .*\nCommand '.*' ((?:returned|died with) .*)\.", re.DOTALL)


def _explained(load: Callable[..., Any]) -> Callable[..., Any]:
    """Snakemake's reader of configuration files, which says what `mpadam` says of a file that neither can read."""

    @wraps(load)
    def loaded(source: Any, *rest: Any) -> Any:
        try:
            return load(source, *rest)
        except Exception:
            from mpadam.study.load import read_yaml

            try:
                read_yaml(Path(source))
            except (ValueError, OSError) as error:
                print(f"mpadam: configuration: {error}", file=sys.stderr)
                sys.exit(2)
            raise

    return loaded


if hasattr(configfile, "_load_configfile"):  # private: a Snakemake without it keeps its own words
    configfile._load_configfile = _explained(configfile._load_configfile)


class LogHandler(LogHandlerBase):
    """Reads Snakemake's log records, one at a time, in a thread of Snakemake's."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        asked = self.common_settings
        if asked.dryrun or asked.printshellcmds or asked.verbose or asked.debug_dag or asked.quiet:
            self.writes_to_stream = False  # so Snakemake's own handler does
        self.screen = Screen()
        self.progress = Progress()
        self.early: list[str] | None = []  # what was said before the workflow started
        self.reasons: dict[int | None, str] = {}  # by thread: the one that ran the job also says that it failed
        self.failed: dict[int, Job] = {}
        self.shown: set[str] = set()
        self.interrupted = False
        self.errors = False
        self.closed = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.writes_to_stream:
            return
        try:
            self._read(record, record.__dict__)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self.writes_to_stream and not self.closed:
            self.closed = True
            self.screen.close()
            for line in self._last_words():
                self.screen.say(line)
        super().close()

    def _read(self, record: logging.LogRecord, fields: dict[str, Any]) -> None:
        match fields.get("event"):
            case LogEvent.WORKFLOW_STARTED:
                self.early = None
                self.screen.move(self._line)
            case LogEvent.RUN_INFO:
                self.progress.total = fields["stats"]["total"]
            case LogEvent.JOB_INFO:
                self._start(fields["jobid"], _job(fields), record.created)
            case LogEvent.JOB_FINISHED:
                self.progress.finish(fields["job_id"], record.created)
            case LogEvent.PROGRESS:
                self.progress.done, self.progress.total = fields["done"], fields["total"]
            case LogEvent.JOB_ERROR:
                self._fail(fields["jobid"], _job(fields), self.reasons.pop(record.thread, ""))
            case None | LogEvent.ERROR:
                self._message(record, fields)

    def _message(self, record: logging.LogRecord, fields: dict[str, Any]) -> None:
        text = record.getMessage()
        if "planned" in fields:
            self.progress.planned = {number: Planned(*job) for number, job in fields["planned"].items()}
        elif record.levelno >= logging.WARNING:
            self.errors = self.errors or record.levelno >= logging.ERROR
            if reason := REASON.fullmatch(text):
                self.reasons[record.thread] = f": its command {reason[1]}"
            elif not text.startswith(LEFT_OUT):
                self.screen.say(text)
        elif text.startswith(SHOWN) and text not in self.shown:
            self.shown.add(text)
            self.interrupted = self.interrupted or text.startswith(INTERRUPTED)
            self.screen.say(text)
        elif self.early is not None and not text.startswith(NOISE):
            self.early.append(text)

    def _start(self, number: int, job: Job, now: float) -> None:
        self.progress.start(number, job, now)
        if self.failed.pop(number, None):
            self.screen.say(f"{job.name()} is tried once more.")

    def _fail(self, number: int, job: Job, reason: str) -> None:
        self.progress.running.pop(number, None)
        if not self.interrupted:
            self.failed[number] = job
            self.screen.say("\n".join([f"{job.name()} failed{reason}.", *show_logs(job.logs)]))

    def _line(self) -> str:
        self.acquire()
        try:
            return self.progress.line(time.time())
        finally:
            self.release()

    def _last_words(self) -> Iterator[str]:
        yield from (not self.errors and self.early) or []
        done, total = self.progress.done, self.progress.total
        counted = f"{done} of {total} jobs done"
        unfinished = {} if self.interrupted else {number: job for number, (job, _) in self.progress.running.items()}
        if failed := self.failed | unfinished:  # those whose outputs are missing are not said to have failed
            yield f"{counted}, {len(failed)} failed:"
            yield from (f"  {job.name()}: {', '.join(job.logs) or 'it has no log'}" for job in failed.values())
        elif total:
            yield f"{counted} in {elapsed(time.time() - (self.progress.began or time.time()))}."
        if done < total:
            yield "The same command continues from here."
        if total or self.errors:
            yield from (f"Snakemake's log: {path}" for path in _log_files())


def _job(fields: dict[str, Any]) -> Job:
    return Job(fields["rule_name"], fields["output"], fields["log"])


def _log_files() -> list[str]:
    """Where Snakemake writes everything it says: nowhere on a dry run, or when it could not."""
    handlers = logging.getLogger("snakemake.logging").handlers
    return [os.path.relpath(handler.baseFilename) for handler in handlers if isinstance(handler, logging.FileHandler)]
