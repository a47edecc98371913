"""Runs that share a job (`grids: runs_per_job`): all are made, and one that changes is repeated alone (case S8)."""

from tests.workflow.toy import Toy


def metrics(toy: Toy) -> dict[str, int]:
    """Run -> when its metrics were last written."""
    root = toy.results / "runs"
    return {str(path.parent.relative_to(root)): path.stat().st_mtime_ns for path in root.glob("**/metrics.jsonl")}


def test_s8_runs_of_one_job_are_repeated_one_by_one(toy: Toy) -> None:
    summaries = [
        f"results/toy/runs/nano/1x/bf16-bf16/{optimizer}/seed{seed}/summary.json"
        for optimizer in ("adamw", "m-plus-adam")
        for seed in (0, 1)
    ]
    toy.edit("toy.yaml", "{name: toy, ", "{name: toy, runs_per_job: 3, ")
    toy.edit("toy.yaml", "{values: {lr: 8e-5, beta1: 0.9}, search: {lr: null}}", "{values: {lr: 7e-5, beta1: 0.9}}")
    toy.edit("toy.yaml", "mode: search, ", "mode: fixed, ")
    toy.edit("toy.yaml", "m-plus-adam: {search", "m-plus-adam: {values: {lr: 2e-3, lr_mult: 3e-3}, search")
    finished = metrics(toy)
    done = toy.done(*summaries)
    assert {rule: n for rule, n in done.items() if rule.startswith(("train", "runs_"))} == {
        "runs_toy_0": 1,
        "runs_toy_1": 1,
    }
    before = metrics(toy)
    assert len(before) == 4
    assert all(when != finished[run] for run, when in before.items())
    assert toy.planned(*summaries) == {}

    toy.edit("toy.yaml", "lr: 7e-5", "lr: 9e-5")
    done = toy.snakemake(*summaries)
    assert done.returncode == 0, done.stdout + done.stderr
    changed = {run for run, when in metrics(toy).items() if when != before[run]}
    assert changed == {f"nano/1x/bf16-bf16/adamw/seed{seed}" for seed in (0, 1)}
    assert toy.planned(*summaries) == {}
