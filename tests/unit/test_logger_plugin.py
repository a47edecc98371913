"""What a person sees while the workflow runs: log records as Snakemake makes them, and what the plugin writes."""

import logging
import threading
from pathlib import Path

import pytest
from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.settings.types import OutputSettings
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

from mpadam.study.load import load_study
from mpadam.study.paths import StudyPaths
from mpadam.workflow.requests import Workflow
from snakemake_logger_plugin_mpadam import LogHandler, screen
from snakemake_logger_plugin_mpadam.progress import Job, Planned, Progress, about, elapsed
from tests.workflow.toy import ROOT

FAILED = """RuleException:
CalledProcessError in file "train.smk", line 27:
Command 'set -euo pipefail;
mpadam train --request [b]' returned non-zero exit status 2."""


def summary(*names: str) -> str:
    return "/".join(("results/smoke", *names, "summary.json"))


class Snakemake:
    """Says what Snakemake says, to a handler of its own."""

    def __init__(self, **settings: bool) -> None:
        self.handler = LogHandler(OutputSettings(**settings), None)
        self.now = 1000.0

    def say(self, text: str = "", level: int = logging.INFO, **fields: object) -> None:
        record = logging.LogRecord("snakemake.logging", level, "", 0, text, (), None)
        record.created = self.now
        record.__dict__ |= fields
        self.handler.handle(record)

    def start(self, total: int) -> None:
        self.say("Workflow has started!", event=LogEvent.WORKFLOW_STARTED)
        self.say("Building DAG of jobs...")
        self.say("Job stats: ...", event=LogEvent.RUN_INFO, stats={"total": total})

    def job(self, event: LogEvent, number: int, rule: str, *outputs: str, log: str) -> None:
        level = logging.ERROR if event == LogEvent.JOB_ERROR else logging.INFO
        self.say(level=level, event=event, jobid=number, rule_name=rule, output=list(outputs), log=[log])

    def fails(self, number: int, rule: str, *outputs: str, log: str) -> None:
        self.say(FAILED, logging.ERROR, event=LogEvent.ERROR)
        self.job(LogEvent.JOB_ERROR, number, rule, *outputs, log=log)

    def finishes(self, number: int, done: int, total: int) -> None:
        self.say(event=LogEvent.JOB_FINISHED, job_id=number)
        self.say(event=LogEvent.PROGRESS, done=done, total=total)

    def ends(self, text: str = "") -> None:
        if text:
            self.say(text, logging.ERROR, event=LogEvent.ERROR)
        self.handler.close()


@pytest.fixture
def train(tmp_path: Path) -> tuple[str, str, str]:
    """Rule, output and log of a training."""
    log = tmp_path / "seed0.log"
    log.write_text("[b]ValueError[/b]: lr: -1: give a rate above 0\n")
    return "train", summary("runs", "200k", "1x", "bf16-bf16", "adamw", "seed0"), str(log)


# --- the line --------------------------------------------------------------------------------------------------------


def test_the_line_tells_what_trains_now_of_the_runs_that_share_a_job(tmp_path: Path) -> None:
    runs = [str(tmp_path / f"smoke/runs/200k/1x/bf16-bf16/adamw/seed{seed}/summary.json") for seed in range(3)]
    assert Progress().line(100) == "Finding out which jobs have to run ..."
    progress = Progress(total=9, done=2)
    progress.start(1, Job("runs_core_0", runs), 100.0)
    progress.start(2, Job("spec", ["run.yaml"]), 101.0)
    progress.start(3, Job("spec", ["run.yaml"]), 101.0)
    assert progress.line(165.5) == "[1:05] 2/9 jobs done; now: 200k 1x bf16-bf16 adamw seed0 (1 of 3), spec"
    Path(runs[0]).parent.mkdir(parents=True)
    Path(runs[0]).touch()
    assert "; now: 200k 1x bf16-bf16 adamw seed1 (2 of 3), spec" in progress.line(166)
    trial = Job("trial", [summary("tuning", "400k", "fp32-bf16", "m-plus-adam", "trial2")])
    assert trial.doing() == "400k fp32-bf16 m-plus-adam trial2"


def test_time_left_needs_evidence_and_is_weighed_by_the_work_of_trainings() -> None:
    """Trainings that are expected to take 10 and 40 s, of which the first took 20, one at a time."""
    progress = Progress(planned={1: Planned("train", 10), 2: Planned("train", 40), 3: Planned("site", 0)})
    assert progress.seconds_left(0) is None
    progress.start(1, Job("train", []), 100.0)
    assert progress.seconds_left(110) is None
    progress.finish(1, 120.0)
    assert progress.seconds_left(120) is None, "nothing has shown how long other jobs take"
    progress.planned[4] = Planned("spec", 0)
    progress.start(4, Job("spec", []), 120.0)
    progress.finish(4, 125.0)
    assert progress.seconds_left(125) == 80 + 5
    progress.start(2, Job("train", []), 125.0)
    assert progress.seconds_left(155) == 50 + 5
    assert progress.seconds_left(300) == 5, "a job that takes longer than expected is about to end"


def test_time_left_is_shorter_where_jobs_run_side_by_side() -> None:
    progress = Progress(planned={number: Planned("train", 10) for number in range(6)})
    for number in range(2):
        progress.start(number, Job("train", []), 100.0)
    for number in range(2):
        progress.finish(number, 130.0)
    assert progress.seconds_left(130) == 4 * 30 / 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    {5: "less than a minute", 61: "about 2 min", 660: "about 10 min", 3000: "about 50 min", 9000: "about 2 h"}.items(),
)
def test_time_left_has_no_false_precision(seconds: float, words: str) -> None:
    assert about(seconds) == words


def test_elapsed_time() -> None:
    assert [elapsed(seconds) for seconds in (0, 83.9, 7283)] == ["0:00", "1:23", "2:01:23"]


def test_the_snakefile_expects_of_a_training_what_the_plan_does() -> None:
    config = load_study([ROOT / "config.yaml", ROOT / "studies/smoke.yaml"])
    study = Workflow(config, StudyPaths(config.study))
    one, two, *_ = study.summaries()
    assert 0 < study.expected_seconds([one]) < study.expected_seconds([one, two])
    assert study.expected_seconds(["results/smoke/index.html"]) == 0
    assert all(study.expected_seconds(study.trial_files(key, "summary.json")) for key in study.tunings())


# --- what stays ------------------------------------------------------------------------------------------------------


def test_a_run_without_failures_says_little(train: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    snakemake, (rule, output, log) = Snakemake(), train
    snakemake.say("Assuming unrestricted shared filesystem usage.")
    snakemake.start(1)
    snakemake.say("", planned={0: (rule, 3.0)})
    snakemake.job(LogEvent.JOB_INFO, 0, rule, output, log=log)
    snakemake.say("mpadam train ...", event=LogEvent.SHELLCMD)
    assert snakemake.handler._line().startswith("[")
    snakemake.finishes(0, 1, 1)
    snakemake.ends()
    assert capsys.readouterr().err.startswith("1 of 1 jobs done in ")


def test_a_failed_job_is_shown_in_full_and_tried_once_more(
    train: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    snakemake, (rule, output, log) = Snakemake(), train
    snakemake.start(2)
    snakemake.job(LogEvent.JOB_INFO, 7, rule, output, log=log)
    snakemake.fails(7, rule, output, log=log)
    said = capsys.readouterr().err
    name = "train 200k 1x bf16-bf16 adamw seed0"
    assert said.startswith(f"{name} failed: its command returned non-zero exit status 2.\nLogfile {log}:\n")
    assert "\n[b]ValueError[/b]: lr: -1: give a rate above 0\n" in said
    assert "--request" not in said
    snakemake.job(LogEvent.JOB_INFO, 7, rule, output, log=log)
    assert capsys.readouterr().err == f"{name} is tried once more.\n"
    snakemake.finishes(7, 2, 2)
    snakemake.ends()
    assert "failed" not in capsys.readouterr().err


def test_the_last_lines_say_what_failed_where_its_log_is_and_that_the_same_command_continues(
    train: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    snakemake, (rule, output, log) = Snakemake(), train
    snakemake.start(20)
    for _ in range(2):
        snakemake.job(LogEvent.JOB_INFO, 7, rule, output, log=log)
        snakemake.fails(7, rule, output, log=log)
    snakemake.job(LogEvent.JOB_INFO, 8, "spec", "run.yaml", log="spec.log")
    snakemake.say("MissingOutputException in rule spec", logging.ERROR, event=LogEvent.ERROR)  # and no JOB_ERROR
    snakemake.say(event=LogEvent.PROGRESS, done=15, total=20)
    capsys.readouterr()
    snakemake.say("Exiting because a job execution failed. Look above for error messages", logging.ERROR)
    snakemake.ends("WorkflowError:\nAt least one job did not complete successfully.")
    assert capsys.readouterr().err.splitlines() == [
        "15 of 20 jobs done, 2 failed:",
        f"  train 200k 1x bf16-bf16 adamw seed0: {log}",
        "  spec: spec.log",
        "The same command continues from here.",
    ]


def test_jobs_that_ctrl_c_ended_have_not_failed(
    train: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    snakemake, (rule, output, log) = Snakemake(), train
    snakemake.start(3)
    snakemake.job(LogEvent.JOB_INFO, 1, rule, output, log=log)
    snakemake.job(LogEvent.JOB_INFO, 2, "spec", "run.yaml", log="spec.log")
    for _ in range(2):
        snakemake.say("Terminating processes on user request, this might take some time.")
    snakemake.fails(1, rule, output, log=log)
    snakemake.ends()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Terminating processes on user request, this might take some time."
    assert said[1].startswith("0 of 3 jobs done in ")
    assert said[2:] == ["The same command continues from here."]


def test_nothing_to_do_and_commands_that_run_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    snakemake = Snakemake()
    snakemake.say("Workflow has started!", event=LogEvent.WORKFLOW_STARTED)
    snakemake.say(NOTHING_TO_BE_DONE_MSG)
    snakemake.ends()
    assert capsys.readouterr().err == f"{NOTHING_TO_BE_DONE_MSG}\n"
    snakemake = Snakemake()
    snakemake.say("Unlocked working directory.")
    snakemake.ends()
    assert capsys.readouterr().err == "Unlocked working directory.\n"


def test_a_start_that_ends_in_an_error_says_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong configuration is said by the Snakefile, in one line, and is no error of Snakemake's."""
    snakemake = Snakemake()
    for name in ("config.yaml", "profiles/slurm/cluster.yaml"):
        snakemake.say(f"Config file {name} is extended by additional config specified via the command line.")
    snakemake.ends()
    assert not capsys.readouterr().err
    snakemake = Snakemake()
    snakemake.say("Assuming unrestricted shared filesystem usage.")
    snakemake.ends("no such rule")
    assert capsys.readouterr().err == "no such rule\n"


def test_an_error_before_any_job_is_shown_with_the_log_of_snakemake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snakemake, logger = Snakemake(), logging.getLogger("snakemake.logging")
    file = logging.FileHandler(tmp_path / "snakemake.log")
    logger.addHandler(file)
    try:
        snakemake.ends("MissingInputException in rule data:\n    en/c4-train.json.gz")
    finally:
        logger.removeHandler(file)
        file.close()
    *error, log = capsys.readouterr().err.splitlines()
    assert error == ["MissingInputException in rule data:", "    en/c4-train.json.gz"]
    assert log.startswith("Snakemake's log: ")
    assert log.endswith("snakemake.log")


@pytest.mark.parametrize("option", ["dryrun", "printshellcmds", "verbose", "debug_dag", "quiet"])
def test_options_about_snakemakes_own_output_bring_it_back(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert LoggerPluginRegistry().get_plugin("mpadam").log_handler is LogHandler
    assert Snakemake().handler.writes_to_stream
    snakemake = Snakemake(**{option: True})
    assert not snakemake.handler.writes_to_stream
    snakemake.start(3)
    snakemake.say("MissingInputException", logging.ERROR)
    snakemake.ends()
    assert capsys.readouterr().err == ""


def test_without_a_terminal_the_line_is_written_now_and_then_until_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written, lines = threading.Event(), iter(range(1000))
    monkeypatch.setattr(screen, "ELSEWHERE_SECONDS", 0.001)

    def line() -> str:
        if (number := next(lines)) == 3:
            written.set()
        return f"line {number}"

    shown = screen.Screen()
    shown.move(line)
    assert written.wait()
    shown.close()
    shown.say("the end")
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == ["line 0", "line 1", "line 2"]
    assert said[-1] == "the end"
