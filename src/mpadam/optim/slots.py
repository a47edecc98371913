"""What an optimizer works out for a parameter, and for a group of them in one step."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from mpadam.optim.compiled import CompiledUpdate, scalars
from mpadam.optim.options import check_fixed, constants, fixed, rates_at
from mpadam.optim.store import WeightStore
from mpadam.optim.update import Plan


@dataclass
class Slot:
    """What follows from a parameter and its state; fixed: the options that it was taken with."""

    plan: Plan
    store: WeightStore
    moments: tuple[str, ...]
    fixed: dict[str, Any]
    compiled: CompiledUpdate | None = None

    @property
    def compresses(self) -> bool:
        return self.plan.constants.second_moment == "apollo_e"


class Shared:
    """What the parameters of one group share in one step, worked out once."""

    def __init__(self, group: dict[str, Any], *, compiles: bool = False) -> None:
        self.group = group
        self.compiles = compiles
        self._fixed = fixed(group)
        self.rates = cache(partial(rates_at, group))
        self.scalars = cache(lambda t, compress, device: scalars(self._constants(compress), self.rates(t), device))
        self._constants = cache(lambda compress: constants(group, compress=compress))
        self.form = cache(lambda compress: self._constants(compress).form())

    def check(self, slot: Slot) -> None:
        """ValueError if an option moved that must not."""
        if slot.fixed != self._fixed:
            check_fixed(self.group, slot.fixed)

    def plan(self, slot: Slot) -> Plan:
        """The plan of a parameter with the constants of this step: options may have moved."""
        now = self._constants(slot.compresses)
        return slot.plan if slot.plan.constants == now else replace(slot.plan, constants=now)
