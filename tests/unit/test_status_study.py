"""The status of a study: counts, what is listed, --json, --watch."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from mpadam.cli import main
from mpadam.durations import duration
from mpadam.plan.jobs import Training, runs, trials
from mpadam.status.report import CLEAR, read_status, to_text, watch
from mpadam.study.config import StudyConfig
from mpadam.study.load import load_study, parse_study
from mpadam.study.paths import StudyPaths
from mpadam.training.lock import RunLock

CONTENT = {
    "study": "small",
    "data": {"source": "builtin"},
    "tokenizer": {"source": "bpe", "vocab_size": 300},
    "models": {"tiny": {"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2, "steps_1x": 100}},
    "budgets": [1],
    "regimes": {"bf16-bf16": {"masters": "bf16", "compute": "bf16"}},
    "optimizers": {"adamw": {"search": {"lr": [1e-3, 1e-2]}}},
    "seeds": [0, 1, 2, 3],
    "tuning": {"mode": "search", "trials": 2},
    "grids": [{"name": "all"}],
}


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(CONTENT))
    return path


@pytest.fixture
def config(config_file: Path) -> StudyConfig:
    return load_study([config_file])


def begin(config: StudyConfig, results: Path, training: Training) -> Path:
    folder = training.folder(StudyPaths(config.study, results))
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text("hash: 0123456789abcdef\nspec:\n  training:\n    steps: 100\n")
    (folder / "metrics.jsonl").write_text('{"step": 50, "loss": 4.5}\n')
    return folder


def end(folder: Path, **changes: object) -> None:
    content = {"hash": "0123456789abcdef", "status": "completed", "steps": 100, "val_loss": 3.0, **changes}
    (folder / "summary.json").write_text(json.dumps(content))


def test_further_trials_count_once_they_are_begun(tmp_path: Path) -> None:
    config = parse_study({**CONTENT, "tuning": {**CONTENT["tuning"], "extend": 2}})
    assert read_status(config, tmp_path).counts(trials=True) == {"waiting": 2}
    key = trials(config)[0].key
    end(begin(config, tmp_path, Training(key, 2)))
    assert read_status(config, tmp_path).counts(trials=True) == {"done": 1, "waiting": 2}


def test_runs_and_trials_are_counted_by_state(config: StudyConfig, tmp_path: Path) -> None:
    end(begin(config, tmp_path, trials(config)[0]))
    first, second, third, _ = runs(config)
    end(begin(config, tmp_path, first))
    end(begin(config, tmp_path, second), status="diverged", diverged={"step": 7, "reason": "loss inf"})
    with RunLock(begin(config, tmp_path, third) / "train.lock"):
        status = read_status(config, tmp_path)
    assert status.counts(trials=True) == {"done": 1, "waiting": 1}
    assert status.counts(trials=False) == {"done": 1, "diverged": 1, "running": 1, "waiting": 1}
    text = to_text(status)
    assert "2 tuning trials: 1 done, 1 waiting" in text
    assert "4 runs: 1 done, 1 diverged, 1 running, 1 waiting" in text
    assert "tiny 1x bf16-bf16 adamw seed2  step 50/100  50% | loss 4.5000 | process" in text
    assert "step 7: loss inf" in text
    assert "seed0" not in text, "what is done or waits is counted, not listed"
    assert not status.ended


def test_other_folders_are_not_looked_at(config: StudyConfig, tmp_path: Path) -> None:
    stray = tmp_path / "small/runs/tiny/1x/bf16-bf16/adamw/seed99"
    stray.mkdir(parents=True)
    assert sum(read_status(config, tmp_path).counts(trials=False).values()) == 4


def test_json_has_a_line_for_each_training(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_study([config_file])
    begin(config, tmp_path, runs(config)[1])
    assert main(["status", "--config", str(config_file), "--results", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["runs"] == {"stopped": 1, "waiting": 3}
    assert len(content["lines"]) == 6
    (line,) = [line for line in content["lines"] if line["state"] == "stopped"]
    assert (line["step"], line["steps"], line["loss"], line["trial"]) == (50, 100, 4.5, None)
    assert line["folder"] == "runs/tiny/1x/bf16-bf16/adamw/seed1"


def test_watching_ends_with_the_study(config: StudyConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each pause finishes one training; the look after the last of them is the last."""
    left = [*trials(config), *runs(config)]
    pauses: list[float] = []

    def finish_one(seconds: float) -> None:
        pauses.append(seconds)
        end(begin(config, tmp_path, left.pop()))

    watch(config, tmp_path, seconds=5.0, as_json=True, sleep=finish_one)
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert pauses == [5.0] * 6
    assert [look["runs"].get("done", 0) + look["trials"].get("done", 0) for look in looks] == list(range(7))


def test_interrupting_the_watch_is_no_error(
    config: StudyConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    watch(config, tmp_path, seconds=5.0, as_json=False, sleep=interrupt)
    text = capsys.readouterr().out
    assert "4 runs: 4 waiting" in text
    assert CLEAR not in text, "a file is not cleared"


def test_without_watch_it_looks_once(config: StudyConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def never(seconds: float) -> None:
        raise AssertionError

    watch(config, tmp_path, seconds=None, as_json=False, sleep=never)
    assert capsys.readouterr().out.count("Study small") == 1


def test_watch_needs_a_time(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--config", str(config_file), "--watch", "0"]) == 2
    assert "--watch 30" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3723, "1:02:03"), (183_840, "2 d 03:04"), (59.7, "1:00")]
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_planning_and_looking_import_no_torch(config_file: Path, tmp_path: Path) -> None:
    """In a process of its own: importing torch takes longer than everything that these commands do."""
    import subprocess

    script = (
        "import sys; from mpadam.cli import main\n"
        f"common = ['--config', {str(config_file)!r}, '--results', {str(tmp_path)!r}]\n"
        "assert main(['plan', *common]) == 0 and main(['status', *common]) == 0\n"
        "heavy = {'torch', 'transformers', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
