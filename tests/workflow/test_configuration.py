"""One configuration: Snakemake plans what `mpadam` reads, or ends in one line before any job is planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from snakemake.common.configfile import load_configfile
from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

from mpadam.study.load import ConfigError
from mpadam.workflow.profiles import check_configfiles
from tests.workflow.toy import OVERLAY, ROOT, Toy, make_toy

#: names that validation accepts, and that collided or fitted no wildcard
NAMES = """\
data: {downloads: "${MPADAM_TEST_DISK}/dl"}
models:
  nano: &nano {hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, steps_1x: 6}
  200k@wide: {<<: *nano, layers: 2}
  200k: {<<: *nano}
  200k-bf16: {<<: *nano}
  "1e5": {<<: *nano}
regimes:
  bf16: {masters: bf16, compute: bf16}
  "null": {masters: bf16, compute: bf16}
  seed0@trial_1: {masters: bf16, compute: bf16}
optimizers:
  x@my_lr: {optimizer: adamw, search: {lr: [1e-3, 2e-3]}}
  x@my-lr: {optimizer: adamw, search: {lr: [1e-3, 2e-3]}}
seeds: [0]
grids:
  - {name: a@b_c, models: [200k, 200k-bf16], regimes: [bf16-bf16, bf16], optimizers: [x@my_lr], runs_per_job: 2}
  - {name: a@b-c, models: [200k@wide, "1e5"], regimes: ["null"], optimizers: [x@my_lr, x@my-lr], runs_per_job: 3}
  - {name: alone, models: [200k@wide, "1e5"], regimes: [seed0@trial_1], optimizers: [x@my_lr, x@my-lr]}
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A project in which nothing has run, and in this module nothing will."""
    toy = make_toy(tmp_path_factory.mktemp("configuration") / "toy")
    (toy.folder / "names.yaml").write_text(NAMES)
    (toy.folder / "twice.yaml").write_text(OVERLAY + "seeds: [0]\n")
    profile = toy.folder / "profiles/twice/config.yaml"
    profile.parent.mkdir()
    profile.write_text("configfile: twice.yaml\ncores: 1\n")
    (profile.parent / "own.yaml").write_text("configfile: toy.yaml\ncores: 1\nconfigfile: names.yaml\n")
    return toy


def refused(toy: Toy, *arguments: str) -> str:
    """The one line that the workflow ends in."""
    done = toy.command("--dry-run", *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "Job stats" not in done.stdout + done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("mpadam: "))


def test_n16_n19_n21_what_validation_accepts_is_planned(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """N16, N19, N21: merge keys, a variable in a path, and names of every kind, each in rules and wildcards."""
    monkeypatch.setenv("MPADAM_TEST_DISK", str(toy.folder / "disk"))
    planned = toy.planned("--configfile", "toy.yaml", "names.yaml")
    counts = {kind: sum(rule.startswith(kind) for rule in planned) for kind in ("trials_", "specs_of_trials_", "runs_")}
    assert counts == {"trials_": 12, "specs_of_trials_": 12, "runs_": 4}
    assert (planned["train"], planned["select"]) == (4, 12)


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (["--profile", "profiles/local", "--configfile", "twice.yaml"], "twice.yaml: key 'seeds'"),
        (["--profile", "profiles/twice"], "twice.yaml: key 'seeds'"),
        (["--profile", "profiles/twice/own.yaml"], "profiles/twice/own.yaml: key 'configfile'"),
        (
            ["--profile", "profiles/local", "--configfile", "toy.yaml", "--config", "tuning={trials: 1, trials: 2}"],
            "--config tuning: key 'trials'",
        ),
    ],
    ids=["overlay", "file of a profile", "profile", "words"],
)
def test_n18_a_key_that_is_given_twice_ends_the_workflow(toy: Toy, arguments: list[str], source: str) -> None:
    line = refused(toy, *arguments)
    assert line.startswith("mpadam: configuration: ")
    assert f"{source} is given twice, on line" in line


@pytest.mark.parametrize(
    ("content", "message"), [(b"a: caf\xe9\n", ": not UTF-8: "), (b"a: [1\n", ": not YAML: "), (None, "Is a directory")]
)
def test_n19_a_file_that_snakemake_reads_before_the_workflow_is_refused_in_the_same_line(
    tmp_path: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    LoggerPluginRegistry().collect_plugins()  # as at every start
    path = tmp_path / "my.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(SystemExit):
        load_configfile(str(path))
    line = capsys.readouterr().err
    assert line.startswith("mpadam: configuration: ")
    assert line.count("\n") == 1
    assert str(path) in line
    assert message in line


def test_n38_the_study_of_a_profile_is_not_replaced_unnoticed(toy: Toy) -> None:
    line = refused(toy, "--profile", "profiles/smoke", "--configfile", "toy.yaml")
    assert "--configfile studies/smoke.yaml toy.yaml " in line
    assert line.endswith("--profile profiles/local --configfile toy.yaml")


@pytest.mark.parametrize(
    "command",
    [
        "--profile profiles/smoke --configfile my.yaml",
        "--profile=profiles/smoke --configfile=my.yaml -n",
        "--profile profiles/smoke/config.yaml --configfiles my.yaml",
        "--workflow-profile smoke --configfile my.yaml",
        "--profile profiles/smoke --profile profiles/local --configfile my.yaml",
        "--profile profiles/smoke --configfile my.yaml studies/smoke.yaml",
        "--configfile my.yaml --prof profiles/smoke -- all",
    ],
)
def test_n38_however_the_profile_is_named(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    given = [Path(word).absolute() for word in ("my.yaml", "studies/smoke.yaml") if word in command]
    with pytest.raises(ConfigError, match=r"--configfile studies/smoke.yaml my.yaml  and .*--configfile my.yaml$"):
        check_configfiles(command.split(), given)


def test_n38_a_profile_in_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "profiles/smoke")
    with pytest.raises(ConfigError, match=r"the study that profiles/smoke/config\.yaml names"):
        check_configfiles(["--configfile", "my.yaml"], [Path("my.yaml").absolute()])


@pytest.mark.parametrize(
    ("command", "joined"),
    [
        ("--configfile a.yaml --configfile b.yaml", "--configfile a.yaml b.yaml"),
        ("--configfile=a.yaml -n --configfiles b.yaml c.yaml", "--configfile a.yaml b.yaml c.yaml"),
        ("--profile profiles/local --configfile a.yaml --configfiles b.yaml -- all", "--configfile a.yaml b.yaml"),
        ("--config a=1 --config b=2", "--config a=1 b=2"),
        ("--config=a=1 -C b=2 c=3 --config d=4", "--config a=1 b=2 c=3 d=4"),
    ],
)
def test_an_option_of_which_snakemake_keeps_the_last_is_given_once(
    command: str, joined: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=f"times, of which Snakemake keeps the last; write  {joined}$"):
        check_configfiles(command.split(), [])


@pytest.mark.parametrize(
    "command",
    [
        "--profile profiles/my",
        "--profile my -n",
        "--profile profiles/my --profile profiles/other",
        "--workflow-profile my",
        "--cores 1",
    ],
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("configfile: a.yaml\ncores: 1\nconfigfile: b.yaml\n", "key 'configfile' is given twice, on lines 1 and 3"),
        ("cores: 1\ncores: 2\n", "key 'cores' is given twice, on lines 1 and 2"),
        ("configfile: a.yaml\n--configfiles: [b.yaml]\n", "configfile and --configfiles are one key"),
    ],
)
def test_a_key_of_a_profile_is_given_once(
    command: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "profiles/my" if "my" in command else "profiles/default"
    for profile, content in (("profiles/other", "cores: 1\n"), (name, text)):
        Path(profile).mkdir(parents=True)
        Path(profile, "config.yaml").write_text(content)
    with pytest.raises(ConfigError, match=f"^{name}/config.yaml: {message}"):
        check_configfiles(command.split(), [])


@pytest.mark.parametrize(
    "command",
    [
        "--profile profiles/smoke",
        "--profile profiles/smoke --config seeds=[0]",
        "--profile profiles/smoke --configfile studies/smoke.yaml my.yaml",
        "--profile profiles/local --configfile studies/smoke.yaml my.yaml",
        "--profile profiles/local --configfile studies/pilot.yaml",
        "--profile slurm --configfile my.yaml",
        "--configfile my.yaml --cores 1",
    ],
)
def test_n38_the_ways_of_the_readme_go_on(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    given = [Path(word).absolute() for word in command.split() if word.endswith(".yaml")]
    check_configfiles(command.split(), given)


def test_the_longest_shared_job_and_its_specifications_come_first(toy: Toy) -> None:
    """Otherwise the longest job, whose specifications wait for a core, starts when everything else has ended."""
    done = toy.snakemake("--dry-run", "--configfile", "studies/smoke.yaml")
    blocks = re.findall(r"^(?:local)?rule (\w*runs_core_\d):$(.*?)(?=^\[|\Z)", done.stdout, re.MULTILINE | re.DOTALL)
    priority = {rule: int(re.search(r"priority: (\d+)", block)[1]) for rule, block in blocks}
    assert len(priority) == 8
    assert {rule: priority[f"specs_of_{rule}"] for rule in priority if not rule.startswith("specs_of_")} == {
        rule: value for rule, value in priority.items() if not rule.startswith("specs_of_")
    }
    assert priority["runs_core_3"] == max(priority.values()) > priority["runs_core_0"]  # 400k at 2x, 200k at 1x
