"""The plan as text for a terminal."""

from collections.abc import Sequence

from mpadam.plan.needs import BudgetNeed, DataNeed
from mpadam.plan.plan import Amount, CellCost, Plan

Row = Sequence[str]


def to_text(plan: Plan) -> str:
    total, devices = plan.total, "threads" if plan.device == "CPU" else "GPUs"
    parts = [
        f"Study {plan.study} on {plan.device}: {count(total.jobs, 'job')} "
        f"({count(total.runs, 'run')}, {count(total.trials, 'tuning trial')}), {_hours(plan, total.hours)}",
        _table(("grid", "jobs", "runs", "trials", "steps", "positions", "FLOPs", _unit(plan), "price"), _amounts(plan)),
        _table(
            ("model", "regime", "parameters", "FLOPs/position", devices, "GB each", "s/step", "from"),
            [_cell(cell) for cell in plan.cells],
        ),
        _table(
            (
                *("one run", "budget", "steps", "sequences", "positions", "FLOPs", _unit(plan), "price"),
                *("passes", "C4 shards", "GB"),
            ),
            [_budget(plan, budget) for budget in plan.budgets],
        ),
        "\n".join(_data(plan.data, plan.results_gigabytes)),
    ]
    if plan.notes:
        parts.append("\n".join(f"note: {note}" for note in plan.notes))
    return "\n\n".join(parts) + "\n"


def count(number: int, noun: str) -> str:
    """`1 job`, `3 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _unit(plan: Plan) -> str:
    return "core-hours" if plan.device == "CPU" else "GPU-hours"


def _hours(plan: Plan, hours: float) -> str:
    alone = f", {hours / 24:.1f} days on one GPU" if plan.device != "CPU" and hours >= 24 else ""
    price = "" if plan.price is None else f", {_price(plan, hours)} at {plan.price:g} per GPU-hour"
    return f"{_number(hours)} {_unit(plan)}{alone}{price}"


def _price(plan: Plan, hours: float) -> str:
    return "" if plan.price is None else _number(plan.price * hours)


def _amounts(plan: Plan) -> list[Row]:
    lines = [*plan.grids, plan.total]
    if plan.remaining.jobs < plan.total.jobs or plan.remaining.hours < plan.total.hours:
        lines.append(plan.remaining)
    return [_amount(plan, line) for line in lines]


def _amount(plan: Plan, line: Amount) -> Row:
    whole = (line.jobs, line.runs, line.trials, line.steps)
    work = (f"{line.positions:.2e}", f"{line.flops:.2e}", _number(line.hours), _price(plan, line.hours))
    return (line.name, *(f"{n:,}" for n in whole), *work)


def _cell(cell: CellCost) -> Row:
    if cell.runs:
        source = f"measured: {count(cell.runs, 'finished run')}"
    else:
        source = "assumed" if cell.utilisation is None else f"assumed: {cell.utilisation:.0%} of bf16 peak"
    return (
        cell.model,
        cell.regime,
        f"{cell.parameters:,}",
        f"{cell.flops_per_position:.2e}",
        str(cell.devices),
        "" if cell.memory_bytes is None else f"{cell.memory_bytes / 1e9:.0f}",
        f"{cell.step_seconds:.3g}",
        source,
    )


def _budget(plan: Plan, need: BudgetNeed) -> Row:
    return (
        need.model,
        f"{need.budget}x",
        f"{need.steps:,}",
        f"{need.sequences:,}",
        f"{need.positions:.2e}",
        f"{need.flops:.2e}",
        _number(need.hours),
        _price(plan, need.hours),
        "" if need.passes is None else f"{need.passes:.3g}",
        "" if need.shards is None else f"{need.shards:,}",
        "" if need.gigabytes is None else _number(need.gigabytes),
    )


def _data(data: DataNeed, results_gigabytes: float) -> list[str]:
    have = "unknown" if data.sequences is None else f"{data.sequences:,}"
    lines = [f"data ({data.source}): {have} training sequences, {data.basis}; data.epochs {data.epochs}"]
    if data.shards is not None and data.train_gigabytes is not None and data.validation_gigabytes is not None:
        lines.append(
            f"download: {count(data.shards, 'training shard')} of C4, {_number(data.train_gigabytes)} GB, and "
            f"{_number(data.validation_gigabytes)} GB of validation shards"
        )
    tokens = "" if data.token_gigabytes is None else f"token files {_number(data.token_gigabytes)} GB, "
    return [*lines, f"disk: {tokens}final weights of all runs {_number(results_gigabytes)} GB"]


def _number(value: float) -> str:
    """Two or three figures, no exponent: `0.034`, `1.2`, `34`, `5,600`."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _table(head: Row, rows: Sequence[Row]) -> str:
    """Names to the left, numbers to the right; a column without any content is left out."""
    columns = [column for column in zip(head, *rows, strict=True) if any(column[1:])]
    return "\n".join("  ".join(line).rstrip() for line in zip(*map(_aligned, columns), strict=True))


def _aligned(column: Row) -> Row:
    width = max(map(len, column))
    return [text.ljust(width) if column[0] in _NAMES else text.rjust(width) for text in column]


_NAMES = ("grid", "model", "regime", "from", "one run")
