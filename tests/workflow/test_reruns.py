"""What runs again: a run when and only when its numbers could change (case S8)."""

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mpadam.cli import main
from tests.workflow.toy import Toy, make_toy

ROOT = Path(__file__).parents[2]
TRAINING = re.compile("train|trial")
FOLLOWS = {"aggregate", "claims", "site", "all"}


def trainings(planned: dict[str, int]) -> dict[str, int]:
    return {rule: n for rule, n in planned.items() if re.fullmatch(r"train|trial|trials_\w+", rule)}


def summaries(*optimizers: str) -> list[str]:
    """The runs of these optimizers, as targets. Tables, figures and the page take longer than the runs."""
    runs = [f"{name}/seed{seed}" for name in optimizers for seed in (0, 1)]
    return [f"results/toy/runs/nano/1x/bf16-bf16/{run}/summary.json" for run in runs]


def touch_everything(toy: Toy) -> None:
    for path in (toy.folder / "c4").rglob("*.gz"):
        os.utime(path)
    for path in (toy.results / "data").rglob("*"):
        os.utime(path)
    for path in toy.results.rglob("*.yaml"):
        os.utime(path)


def edit_without_meaning(toy: Toy) -> None:
    """Comments, spaces, the order of keys, the spelling of a rate, and dates."""
    toy.edit("toy.yaml", "seeds: [0, 1]", "seeds: [0, 1] # two will do")
    toy.edit("toy.yaml", "{lr: 8e-5, beta1: 0.9}", "{beta1: 0.9, lr: 0.000080}")
    toy.edit("workflow/rules/train.smk", "--replace --run", "--replace  --run")
    toy.edit("workflow/rules/train.smk", "rule train:", "# once\nrule train:")
    with (toy.folder / "src/mpadam/training/run.py").open("a") as file:
        file.write("# end\n")
    touch_everything(toy)


def edit_a_rate_to_text(toy: Toy) -> None:
    toy.edit("toy.yaml", "lr: 8e-5", "lr: '8.0e-5'")


@pytest.mark.parametrize(
    ("edit", "arguments"),
    [(edit_without_meaning, []), (edit_a_rate_to_text, ["--software-deployment-method", "apptainer"])],
    ids=["all edits", "text, in a container"],
)
def test_s8_harmless_edits_run_nothing(toy: Toy, edit: Callable[[Toy], None], arguments: list[str]) -> None:
    """All of them at once, since a start of Snakemake takes two seconds; what is planned says which one is at fault."""
    edit(toy)
    planned = toy.planned(*arguments)
    assert trainings(planned) == {}
    assert set(planned) <= {"study"} | FOLLOWS


def test_s8_checkpoint_interval_retrains_nothing_that_cannot_be_answered_at_once(toy: Toy) -> None:
    """It changes no number, so each run answers from what it has: same summary, no training."""
    before = {path: path.read_text() for path in toy.results.glob("runs/**/summary.json")}
    metrics = {path: path.stat().st_mtime_ns for path in toy.results.glob("runs/**/metrics.jsonl")}
    toy.edit("toy.yaml", "checkpoint_every: 3", "checkpoint_every: 2")
    toy.done(*summaries("adamw", "m-plus-adam"))
    assert before == {path: path.read_text() for path in before}
    assert metrics == {path: path.stat().st_mtime_ns for path in metrics}


def test_s8_plotting_code_remakes_tables_and_pages_only(toy: Toy) -> None:
    with (toy.folder / "src/mpadam/exhibits/figure4.py").open("a") as file:
        file.write("# a comment\n")
    assert toy.planned() == {"figure": 1, "site": 1, "all": 1}


def test_issue_19_a_colour_of_the_style_remakes_every_figure_that_uses_it(toy: Toy) -> None:
    """Figure 3 was left as it was while Figure 4 got the new colour: lists of sources were written by hand."""
    (toy.results / "paper/diagnostics").mkdir(parents=True)
    with (toy.folder / "src/mpadam/analysis/style.py").open("a") as file:
        file.write("# a comment\n")
    planned = toy.planned()
    assert (planned["figure"], planned["table"]) == (3, 3)
    assert not {"aggregate", "train", "trial"} & set(planned)


def test_s8_a_rate_retrains_exactly_its_runs(toy: Toy) -> None:
    toy.edit("toy.yaml", "lr: 8e-5", "lr: 9e-5")
    planned = toy.planned()
    assert trainings(planned) == {"train": 2}
    assert planned["spec"] == 2
    toy.done(*summaries("adamw"))
    for path in summaries("adamw"):
        assert json.loads((toy.folder / path).read_text())["spec"]["optimizer"]["values"]["lr"] == 9e-5
    planned = toy.planned()
    assert trainings(planned) == {}
    assert set(planned) <= FOLLOWS | {"study", "table", "figure"}


def test_s8_a_seed_runs_only_that_seed(toy: Toy) -> None:
    toy.edit("toy.yaml", "seeds: [0, 1]", "seeds: [0, 1, 2]")
    planned = toy.planned()
    assert trainings(planned) == {"train": 2}
    assert planned["spec"] == 2


def test_a_search_repeats_the_tuning_and_the_runs_of_its_optimizer_only(toy: Toy) -> None:
    toy.edit("toy.yaml", "lr: [1e-3, 3e-3]", "lr: [1e-3, 5e-3]")
    assert trainings(toy.planned()) == {"train": 2, "trials_nano_bf16_bf16_m_plus_adam": 1}


def test_a_lost_summary_is_answered_from_the_run_folder(toy: Toy) -> None:
    run = toy.results / "runs/nano/1x/bf16-bf16/adamw/seed0"
    before, metrics = (run / "summary.json").read_text(), (run / "metrics.jsonl").stat().st_mtime_ns
    (run / "summary.json").unlink()
    assert trainings(toy.done(*summaries("adamw", "m-plus-adam"))) == {"train": 1}
    assert (run / "summary.json").read_text() == before
    assert (run / "metrics.jsonl").stat().st_mtime_ns == metrics


def test_results_that_were_edited_by_hand_are_made_again_and_the_tables_follow(toy: Toy) -> None:
    """One run's metrics, another one's summary, and a table that was made by hand while a run was refused."""
    one, other = (toy.results / f"runs/nano/1x/bf16-bf16/{name}/seed0" for name in ("adamw", "m-plus-adam"))
    before = {path: path.read_text() for path in (one / "summary.json", other / "summary.json")}
    metrics, summary, table = one / "metrics.jsonl", other / "summary.json", toy.results / "tables/runs.csv"
    metrics.write_text(metrics.read_text().replace('"step": 2', '"step": 3'))
    summary.write_text(json.dumps({**json.loads(before[summary]), "val_loss": 1.0, "val_ppl": math.e}))
    assert trainings(toy.done()) == {"train": 2}
    assert summary.read_text() == before[summary]
    assert (
        json.loads((one / "summary.json").read_text())["val_loss"]
        == json.loads(before[one / "summary.json"])["val_loss"]
    )
    assert toy.planned() == {}

    table.write_text(table.read_text().replace(",completed,", ",refused,", 1))
    assert toy.planned()["aggregate"] == 1


# --- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seeds: [0, 1]", "seedz: [0, 1]", "seedz: unknown key 'seedz'; did you mean 'seeds'?"),
        ("adamw: {values", "adamv: {values", "adamv"),
        ("path: c4,", "path: nowhere,", "nowhere"),
        ("hidden_size: 16", "hidden_size: 15", "hidden_size 15"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_exit_code_2(tmp_path: Path, old: str, new: str, expected: str) -> None:
    toy = make_toy(tmp_path / "toy")
    toy.edit("toy.yaml", old, new)
    done = toy.snakemake("--dry-run")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("mpadam: ")]
    assert len(lines) == 1
    assert expected in lines[0]
    assert "Traceback" not in done.stderr
    assert not toy.results.exists()


def test_a_truncated_shard_fails_by_name_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    """D3 through the workflow: the log names the file, and no manifest pretends that there is data."""
    toy = make_toy(tmp_path / "toy")
    shard = toy.folder / "c4/en/c4-train.00001-of-01024.json.gz"
    shard.write_bytes(shard.read_bytes()[:-200])
    done = toy.snakemake()
    assert done.returncode == 1
    assert shard.name in (toy.results / "logs/data.log").read_text()
    assert shard.name in done.stdout + done.stderr
    assert not (toy.results / "data/manifest.json").exists()


# --- the profile -----------------------------------------------------------------------------------------------------


def test_s6_from_another_folder_the_error_is_clear(finished_toy: Toy, tmp_path: Path) -> None:
    done = finished_toy.snakemake("--dry-run", cwd=tmp_path)
    assert done.returncode != 0
    assert "profiles/local" in done.stderr


def test_i20_a_study_goes_on_from_its_archive_as_results_readme_says(toy: Toy) -> None:
    """Without the data's date, Snakemake deletes the summaries of finished runs and trains them again."""
    archive, runs = toy.folder / "kept", summaries("adamw", "m-plus-adam")
    assert main(["keep", str(toy.results), str(archive)]) == 0
    readme = (ROOT / "results/README.md").read_text(encoding="utf-8")
    told = [
        "data/manifest.json --configfile",
        "tar -xf results/example/long/runs.tar.xz",
        "touch -d @0 results/long/data",
    ]
    assert sorted(told, key=readme.index) == told
    shutil.rmtree(toy.results)
    toy.done("results/toy/data/manifest.json")
    subprocess.run(["tar", "-xf", archive / "runs.tar.xz", "-C", toy.results], check=True)
    os.utime(toy.results / "data/manifest.json", (0, 0))
    assert trainings(toy.planned(*runs)) == {}
