"""The rule of probes: its command makes every file that it declares, and a study without probes does not ask for it."""

from pathlib import Path

from tests.workflow.toy import Toy


def test_the_rule_makes_what_it_declares(finished_toy: Toy, tmp_path: Path) -> None:
    toy = finished_toy.copy(tmp_path / "toy")
    done = toy.snakemake("results/toy/paper/tables/probes.csv", "--nolock")
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.stem for path in (toy.results / "paper/figures").iterdir()}
    assert names == {"survival-bf16-bf16", "descent", "staleness"}
    assert "probes" not in toy.planned("results/toy/paper/tables/probes.csv")
    toy.edit("config.yaml", "  probe_every: 500\n", "  probe_every: null\n")
    assert "probes" not in toy.planned("all_paper")
