"""Table 1, measured: what an update can and cannot do to a weight, in one format with one write-back.

produce(Capabilities(), Path("results/smoke"))
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from mpadam.diagnostics.records import tidy_capabilities, write_csv, write_results
from mpadam.diagnostics.scene import reference_rates, reference_step, scene
from mpadam.numerics.formats import get_format
from mpadam.optim.card import Constants
from mpadam.optim.names import BY_CHANCE, is_defined, parse_optimizer_name
from mpadam.optim.registry import build_optimizer
from mpadam.optim.store import StorePlan, draw_of
from mpadam.study.diagnostics import Capabilities

COPIES_OF_A_TASK = 64  # where rounding is by chance
SCANNED_A_BINADE = 4
BISECTIONS = 10  # of an interval of a quarter of a binade: to 0.02%, finer than any format


@dataclass(frozen=True)
class Edges:
    """Updates move weights between `below` and `above`; None: they still do at that end of the range.

    everywhere: they move none, and there are no edges.  gaps: share of the scanned |w| between the edges where they do
    not: a step proportional to |w| may do for the fine half of a binade only.
    """

    below: float | None = None
    above: float | None = None
    everywhere: bool = False
    gaps: float = 0.0


@dataclass(frozen=True)
class Capability:
    """One optimizer x write-back x format.

    zero, sign, small: updates until a zero weight is not zero, a weight has the sign that it should have, a small
        weight is half as large as it should be; None: not within the limit. Median over copies where rounding is by
        chance.
    edges: between which |w| a weight moves within `updates` equal updates.
    """

    fmt: str
    optimizer: str
    write_back: str
    zero: int | None
    sign: int | None
    small: int | None
    edges: Edges


def produce(options: Capabilities, root: Path) -> None:
    """Write diagnostics/capabilities/ under `root`: results.json, and the same as capabilities.csv."""
    found = [
        asdict(measure(fmt, optimizer, write_back, options))
        for fmt in options.formats
        for optimizer in options.optimizers
        for write_back in options.write_backs
        if is_defined(replace(parse_optimizer_name(optimizer), write_back=write_back))
    ]
    folder = root / "diagnostics" / "capabilities"
    write_results(folder, options, capabilities=found)
    write_csv(tidy_capabilities(found), folder / "capabilities.csv")


def measure(fmt: str, optimizer: str, write_back: str, options: Capabilities) -> Capability:
    zero, sign, small = _tasks(fmt, optimizer, write_back, options)
    edges = find_edges(lambda w: _moves(w, fmt, optimizer, write_back, options), *options.magnitudes)
    return Capability(fmt, optimizer, write_back, zero, sign, small, edges)


# --- a zero weight, a wrong sign, a small weight: the optimizer itself -----------------------------------------------


def _tasks(fmt: str, optimizer: str, write_back: str, options: Capabilities) -> list[int | None]:
    """Updates until each of the three is done, under a gradient of constant size towards the target."""
    start = torch.tensor([0.0, options.weight, options.small])
    target = torch.tensor([options.weight, -options.weight, options.weight])
    name = replace(parse_optimizer_name(optimizer), write_back=write_back)
    placed = scene(
        start,
        get_format(fmt),
        deviation=options.deviation,
        copies=COPIES_OF_A_TASK if write_back in BY_CHANCE else 1,
        typical_rms=name.form == "normalized_rho_tensor",
    )
    p = nn.Parameter(placed.weights.to(torch.bfloat16))
    groups = [{"params": [p], "weight_format": fmt}]
    built = build_optimizer(groups, name, reference_rates(optimizer, options), masters=fmt, state_dtype="bf16")
    built.reload_weights({p: placed.weights})
    done_at = torch.full(placed.places.shape, options.limit + 1)
    for t in range(1, options.limit + 1):
        w = placed.at_probes(built.store_of(p).read())
        p.grad = placed.spread(torch.sign(w - target[:, None]) * options.gradient).to(p.dtype)
        built.step()
        done = _done(placed.at_probes(built.store_of(p).read()), options)
        done_at = torch.where(done & (done_at > t), t, done_at)
        if (done_at <= t).all():
            break
    return [None if t > options.limit else t for t in done_at.median(dim=1).values.tolist()]


def _done(w: Tensor, options: Capabilities) -> Tensor:
    """(3, copies): the zero weight left zero, the sign is right, the small weight has grown."""
    return torch.stack((w[0] != 0, w[1] < 0, w[2] >= options.weight / 2))


# --- small and large weights: the step of the rule on the weight store -----------------------------------------------


def _moves(magnitudes: Tensor, fmt: str, optimizer: str, write_back: str, options: Capabilities) -> Tensor:
    """Whether weights of `magnitudes` have moved after `options.updates` equal updates away from zero.

    Where rounding is by chance, whether half of the copies have. ECO's share of the first moment is followed as the
    step that it makes of the coming updates.
    """
    format_ = get_format(fmt)
    copies = options.copies if write_back in BY_CHANCE else 1
    placed = scene(magnitudes, format_, deviation=options.deviation, copies=copies)
    plan, shape = StorePlan(format_, write_back), placed.weights.shape
    stored = plan.initial(placed.weights)
    before = placed.at_probes(plan.read(stored, shape))
    weights = before[:, 0]  # rounding to nearest made all copies the same
    away = torch.where(weights < 0, 1.0, -1.0)  # of a weight that is stored as zero: upwards
    step = placed.spread(reference_step(optimizer, weights, options.gradient * away, options).delta)
    moved, owed, b1 = torch.zeros_like(before, dtype=torch.bool), torch.zeros_like(step), Constants().decay1
    for t in range(1, options.updates + 1):
        bits = draw_of(seed=0, tensor_id=0, t=t).bits(shape, step.device) if plan.needs_bits else None
        written = plan.write(stored, plan.read(stored, shape), step + b1.kept * owed, bits)
        stored = written.tensors
        if plan.feeds_back:
            owed = b1.kept * owed + b1.taken / b1.kept * plan.error(written)
        moved |= placed.at_probes(plan.read(stored, shape)) != before
        if moved.all():
            break
    return moved.double().mean(dim=1) >= 0.5


# --- where updates begin to be lost: a scan along |w|, then bisection at the two places where it changes --------------


def find_edges(moves: Callable[[Tensor], Tensor], low: float, high: float) -> Edges:
    """moves: |w| of shape (n,), float32 -> for each whether it moves, (n,) bool."""
    count = 2 + int(SCANNED_A_BINADE * torch.log2(torch.tensor(high / low)).item())
    grid = torch.logspace(torch.log2(torch.tensor(low)).item(), torch.log2(torch.tensor(high)).item(), count, base=2.0)
    alive = moves(grid)
    if not alive.any():
        return Edges(everywhere=True)
    found = alive.nonzero().flatten()
    first, last = int(found[0]), int(found[-1])
    gaps = 1.0 - alive[first : last + 1].double().mean().item()
    below = None if first == 0 else _bisect(moves, lost=grid[first - 1], alive=grid[first])
    above = None if last == count - 1 else _bisect(moves, lost=grid[last + 1], alive=grid[last])
    return Edges(below, above, gaps=gaps)


def _bisect(moves: Callable[[Tensor], Tensor], *, lost: Tensor, alive: Tensor) -> float:
    """The |w| between two where it changes, halving the interval on a logarithmic scale."""
    for _ in range(BISECTIONS):
        middle = (lost * alive).sqrt()
        if moves(middle[None]).item():
            alive = middle
        else:
            lost = middle
    return (lost * alive).sqrt().item()
