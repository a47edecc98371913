"""The plan of a study: what its grids ask for, before anything is submitted and again while it runs.

    plan = make_plan(load_study([Path("config.yaml")]), Path("results"))

Only trainings are planned: diagnostics, tables and figures take minutes.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpadam.plan.amounts import Amount, CellCost, amount, cells, further_note, notes
from mpadam.plan.jobs import Training, runs, trials, trials_for
from mpadam.plan.model import CostModel
from mpadam.plan.needs import BudgetNeed, DataNeed, budget_needs, data_need, read_manifest, shortages
from mpadam.plan.observed import finished, observe
from mpadam.plan.supply import supply
from mpadam.study.archive import open_study
from mpadam.study.config import StudyConfig
from mpadam.study.grid import grid_keys
from mpadam.study.paths import StudyPaths

WEIGHT_BYTES_KEPT = 2  # a parameter, in `checkpoints/final` of each run and trial


@dataclass(frozen=True)
class Plan:
    """device: title of the GPU, or "CPU". total: without duplicates. remaining: of what has no summary yet.

    price: of a GPU-hour, None if none was given. results_gigabytes: weights that the finished runs keep.
    problems: why the study cannot run as it is.
    """

    study: str
    device: str
    price: float | None
    grids: tuple[Amount, ...]
    total: Amount
    remaining: Amount
    cells: tuple[CellCost, ...]
    budgets: tuple[BudgetNeed, ...]
    data: DataNeed
    results_gigabytes: float
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        content = asdict(self)
        for cell, line in zip(self.cells, content["cells"], strict=True):
            line["source"] = cell.source
        return content


def make_plan(
    config: StudyConfig, results: Path = Path("results"), *, gpu: str | None = None, price: float | None = None
) -> Plan:
    """Plan a study.

    results: folder that holds the study's folder; finished runs in it replace assumptions, and are not done again.
    gpu: a key of `assumptions.GPUS`; None: what `cluster.gpu_model` says.
    price: of a GPU-hour. Raises ValueError for a study that trains on CPUs.
    """
    paths = open_study(StudyPaths(config.study, results))
    manifest = read_manifest(config, paths)
    everything = [*runs(config), *trials(config)]
    done = finished(everything, paths)
    vocab_size = None if manifest is None else int(manifest["vocab_size"])
    model = CostModel(config, vocab_size, gpu, observe(config, done.values()))
    if model.on_cpu and price is not None:
        raise ValueError(f"study {config.study} trains on CPUs: leave out the price of a GPU-hour, {price:g}")
    supplied = supply(config.data, manifest)
    budgets = budget_needs(model, everything, supplied)
    costs = cells(model, everything)
    short = shortages(config, budgets, supplied)
    return Plan(
        study=config.study,
        device="CPU" if model.on_cpu else model.hardware.title,
        price=price,
        grids=_grids(model),
        total=amount(model, "in all", everything),
        remaining=amount(model, "still to do", [training for training in everything if training not in done]),
        cells=tuple(costs),
        budgets=tuple(budgets),
        data=data_need(config, budgets, supplied, manifest),
        results_gigabytes=sum(WEIGHT_BYTES_KEPT * model.shape(t.key.model).parameters for t in everything) / 1e9,
        notes=(*notes(model, costs), *further_note(model), *([] if supplied.refuses else short)),
        problems=tuple(short if supplied.refuses else []),
    )


def _grids(model: CostModel) -> tuple[Amount, ...]:
    """Each grid with the trials that its runs wait for: what two grids share stands in both."""
    config = model.config
    keys = {grid.name: grid_keys(config, grid) for grid in config.grids}
    return tuple(amount(model, name, [*map(Training, k), *trials_for(config, k)]) for name, k in keys.items())
