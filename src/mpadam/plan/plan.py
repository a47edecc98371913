"""The plan of a study: what its grids ask for, before anything is submitted and again while it runs.

    plan = make_plan(load_study([Path("config.yaml")]), Path("results"))

Only trainings are planned: diagnostics, tables and figures take minutes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpadam.plan.assumptions import GPUS
from mpadam.plan.cost import activation_bytes, fp8_backend, utilisation
from mpadam.plan.jobs import Training, finished, observe, runs, trials, trials_for
from mpadam.plan.model import CostModel, known_gpu
from mpadam.plan.needs import BudgetNeed, DataNeed, budget_needs, data_need, read_manifest, shortages, supply
from mpadam.study.archive import open_study
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey, grid_keys
from mpadam.study.paths import StudyPaths

# --- what sets of trainings and single models cost --------------------------------------------------------------------


@dataclass(frozen=True)
class Amount:
    """What a set of trainings comes to. hours: GPU-hours, or core-hours on a CPU."""

    name: str
    jobs: int
    runs: int
    trials: int
    steps: int
    positions: int
    flops: int
    hours: float


@dataclass(frozen=True)
class CellCost:
    """Cost of a model in a regime, for its dearest optimizer.

    flops_per_position: of training. devices: GPUs or CPU threads; devices_wanted: what the model's size wants.
    memory_bytes: of one GPU, None on a CPU. runs: finished ones that step_seconds was measured from; 0: assumed.
    utilisation: share of the GPU's bf16 peak by the assumptions; None where it is measured, and on a CPU.
    """

    model: str
    regime: str
    parameters: int
    flops_per_position: int
    devices: int
    devices_wanted: int
    memory_bytes: float | None
    step_seconds: float
    runs: int
    utilisation: float | None

    @property
    def source(self) -> str:
        return "measured" if self.runs else "assumed"


def amount(model: CostModel, name: str, trainings: Sequence[Training]) -> Amount:
    """Sums over trainings; the trials of a tuning are one job where they share it."""
    works = [model.work(training) for training in trainings]
    tried = [t.key for t in trainings if t.trial is not None]
    jobs_of_trials = len(set(tried)) if model.config.tuning.trials_per_job == "all" else len(tried)
    return Amount(
        name=name,
        jobs=len(trainings) - len(tried) + jobs_of_trials,
        runs=len(trainings) - len(tried),
        trials=len(tried),
        steps=sum(w.steps for w in works),
        positions=sum(w.positions for w in works),
        flops=sum(w.flops(model.shape(t.key.model)) for w, t in zip(works, trainings, strict=True)),
        hours=sum(map(model.hours, trainings)),
    )


def cells(model: CostModel, trainings: Iterable[Training]) -> list[CellCost]:
    """One line for each model and regime, in the order of the trainings."""
    keys: dict[tuple[str, str], dict[str, RunKey | TuningKey]] = {}
    for training in trainings:
        key = training.key
        keys.setdefault((key.model, key.regime), {})[key.optimizer] = key
    return [_cell(model, list(of_each.values())) for of_each in keys.values()]


def _cell(model: CostModel, keys: list[RunKey | TuningKey]) -> CellCost:
    """keys: of one model and regime, one for each optimizer."""
    name, regime, config = keys[0].model, keys[0].regime, model.config
    shape, observed, devices = model.shape(name), model.observed.get((name, regime)), model.devices(name)
    if observed is None:
        step = max(map(model.assumed_step_seconds, keys))
    else:
        positions = config.training.global_batch_size * config.data.sequence_length
        step = positions * observed.seconds_per_position / devices
    mfu = None
    if observed is None and not model.on_cpu:
        mfu = utilisation(shape, config.training, step, gpu=model.hardware, gpus=devices)
    return CellCost(
        model=name,
        regime=regime,
        parameters=shape.parameters,
        flops_per_position=shape.flops.training,
        devices=devices,
        devices_wanted=devices if model.on_cpu else model.gpus_wanted(name),
        memory_bytes=None if model.on_cpu else max(map(model.memory_bytes, keys)),
        step_seconds=step,
        runs=0 if observed is None else observed.runs,
        utilisation=mfu,
    )


def notes(model: CostModel, costs: Sequence[CellCost]) -> list[str]:
    """What stands in the way of the GPUs that a model wants, of its fitting into one, and of FP8: a line each."""
    if model.on_cpu:
        return []
    dearest = {cell.model: cell for cell in sorted(costs, key=lambda cell: cell.memory_bytes or 0.0)}
    few = [_too_few(model, cell) for cell in dearest.values() if cell.devices < cell.devices_wanted]
    memory = model.hardware.memory
    large = [_too_large(model, cell) for cell in dearest.values() if (cell.memory_bytes or 0.0) > memory]
    return [*few, *large, *_unknown_gpu(model), *_without_fp8(model, costs)]


def further_note(model: CostModel) -> list[str]:
    """What the further trials that `tuning.extend` allows would add at most: a line, if it allows any."""
    extend = model.config.tuning.extend
    first = [training for training in trials(model.config) if training.trial == 0]
    hours = extend * sum(map(model.hours, first))
    allowed = f"tuning.extend: up to {extend} further trials for each of {len(first)} tunings, in one job each"
    return (
        [f"{allowed}, at most {hours:.2g} {'core' if model.on_cpu else 'GPU'}-hours more"] if extend and first else []
    )


def _too_few(model: CostModel, cell: CellCost) -> str:
    config = model.config
    return (
        f"{cell.model}: {cell.devices} GPU{'s' if cell.devices > 1 else ''}, not {cell.devices_wanted}: they share the "
        f"micro-batches of an update evenly, {config.training.global_batch_size} / "
        f"{config.micro_batch_size(cell.model)} sequences"
    )


def _unknown_gpu(model: CostModel) -> list[str]:
    if model.gpu is not None or known_gpu(model.config) is not None:
        return []
    named, title = model.config.cluster.gpu_model or "null", model.hardware.title
    return [f"cluster.gpu_model: {named} is none of {', '.join(GPUS)}; planned, and jobs limited, as on an {title}"]


def _without_fp8(model: CostModel, costs: Sequence[CellCost]) -> list[str]:
    """A line if FP8 products are asked of a GPU that has none; they are planned in bf16."""
    training, regimes = model.config.training, model.config.regimes
    backends = {cell.regime: fp8_backend(regimes[cell.regime], training, model.hardware) for cell in costs}
    asked = [regime for regime, backend in backends.items() if backend not in (None, "emulated")]
    if not asked or "fp8" in model.hardware.peak:
        return []
    title = model.hardware.title
    return [f"{', '.join(asked)}: an {title} has no FP8 products; it takes  training: {{fp8_backend: emulated}}"]


def _too_large(model: CostModel, cell: CellCost) -> str:
    """Names the largest micro-batch that fits, all else being equal."""
    assert cell.memory_bytes is not None
    gpu, micro, shape = model.hardware, model.config.micro_batch_size(cell.model), model.shape(cell.model)
    rest = cell.memory_bytes - activation_bytes(shape, micro)
    fits = [n for n in range(1, micro) if micro % n == 0 and rest + activation_bytes(shape, n) <= gpu.memory]
    remedy = f"{max(fits)} fits" if fits else "no micro-batch fits"
    return (
        f"{cell.model} {cell.regime}: about {cell.memory_bytes / 1e9:.0f} GB at micro_batch_size {micro}, and "
        f"an {gpu.title} has {gpu.memory / 1e9:.0f}: {remedy}"
    )


# --- the plan ---------------------------------------------------------------------------------------------------------


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
    keys = {grid.name: grid_keys(config, grid) for grid in config.grids}
    grids = {name: [*map(Training, of_grid), *trials_for(config, of_grid)] for name, of_grid in keys.items()}
    return Plan(
        study=config.study,
        device="CPU" if model.on_cpu else model.hardware.title,
        price=price,
        grids=tuple(amount(model, name, found) for name, found in grids.items()),
        total=amount(model, "in all", everything),
        remaining=amount(model, "still to do", [training for training in everything if training not in done]),
        cells=tuple(costs),
        budgets=tuple(budgets),
        data=data_need(config, budgets, supplied, manifest),
        results_gigabytes=sum(WEIGHT_BYTES_KEPT * model.shape(t.key.model).parameters for t in everything) / 1e9,
        notes=(*notes(model, costs), *further_note(model), *([] if supplied.refuses else short)),
        problems=tuple(short if supplied.refuses else []),
    )
