"""The one optimizer class: rule x write-back x format behind `torch.optim.Optimizer`.

`MPlusAdam`, `AdamW`, `Madam` and `AdditiveTwin` (`mpadam.optim.optimizer`) only name a rule and its defaults. All
that depends on a parameter group can differ between groups. State of a parameter, in `optimizer.state[p]`:

    step, id        updates so far; number of the parameter, which the rounding bits are a function of
    m, v, v_e, v_r  moments of the rule, in the state dtype (rounded to nearest, whatever the write-back is)
    weight.*        the stored weight where the parameter is only its compute copy
    carry, shadow   where write-back or format ask for them

A checkpoint keeps every dtype and bit of it: torch's own `load_state_dict` would cast all of it to the parameter's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from mpadam.numerics import get_format
from mpadam.numerics.base import Format
from mpadam.optim.apollo import can_compress, projection_at
from mpadam.optim.checkpoints import box, unbox
from mpadam.optim.compiled import CompiledUpdate, can_compile
from mpadam.optim.options import (
    DTYPES,
    check_fixed,
    check_keys,
    check_moving,
    constants,
    fixed,
    name_of,
    rates_at,
    resolve,
)
from mpadam.optim.rules import state_shapes
from mpadam.optim.sharding import is_split, local, position_of, splits
from mpadam.optim.store import StorePlan, WeightStore
from mpadam.optim.update import Observation, Operands, Plan, observed_update, update


@dataclass
class _Slot:
    """What the optimizer knows about one parameter beside its state; fixed: the options that it was taken with."""

    plan: Plan
    store: WeightStore
    moments: tuple[str, ...]
    fixed: dict[str, Any]
    compiled: CompiledUpdate | None = None

    @property
    def compresses(self) -> bool:
        return self.plan.constants.second_moment == "apollo_e"


class _Shared:
    """What the parameters of one group share in one step, worked out once."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group
        self._fixed = fixed(group)
        self.rates = cache(partial(rates_at, group))
        self.rate_tensors = cache(lambda t: self.rates(t).tensors())
        self._constants = cache(lambda compress: constants(group, compress=compress))

    def check(self, slot: _Slot) -> None:
        """ValueError if an option moved that must not."""
        if slot.fixed != self._fixed:
            check_fixed(self.group, slot.fixed)

    def plan(self, slot: _Slot) -> Plan:
        """The plan of a parameter with the constants of this step: options may have moved."""
        now = self._constants(slot.compresses)
        return slot.plan if slot.plan.constants == now else replace(slot.plan, constants=now)


class LowPrecisionOptimizer(torch.optim.Optimizer):
    """See the module; `rule` is set by the subclass, and `options` are the defaults of every group.

    observer: where set, called with (parameter, `Observation`) at each update; the step then runs eagerly. It belongs
        to this object: copies and pickles of the optimizer have none.
    """

    rule: ClassVar[str]

    def __init__(self, params: Iterable[Any], options: dict[str, Any]) -> None:
        self._slots: dict[Tensor, _Slot] = {}
        self._formats: dict[str, Format] = {}
        self.observer: Callable[[Tensor, Observation], None] | None = None
        super().__init__(params, options | {"rule": self.rule})

    # -- groups ---------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch, but the caller's dict stays as it is, so that a list of groups can be given to any number of
        optimizers. A frozen parameter is left alone until it first has a gradient.

        Raises ValueError for a bad option, or a parameter that has no weight format.
        """
        first = len(self._members())
        check_keys(param_group, self.defaults, title=type(self).__name__, index=len(self.param_groups))
        super().add_param_group(dict(param_group))
        group = self.param_groups[-1]
        try:
            self._normalise(group)
            plans = [(n, p, self._plan(p, group)) for n, p in enumerate(group["params"], first) if _is_trained(p)]
        except ValueError:
            self.param_groups.pop()
            raise
        for number, p, plan in plans:
            self._adopt(p, plan, group, number)

    def _members(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Every parameter with its group, in the order that numbers them."""
        return [(p, group) for group in self.param_groups for p in group["params"]]

    def _normalise(self, group: dict[str, Any]) -> None:
        """Check the options of a group; formats and dtypes become names, which any checkpoint can hold."""
        group.pop("_base_lr", None)  # of another optimizer, whose groups these were
        check_moving(group)
        group["_base_lr"] = float(group["lr"])
        if group["weight_format"] is not None:
            group["weight_format"] = self._register(group["weight_format"])
        resolve(group)

    def _register(self, weight_format: str | Format) -> str:
        if isinstance(weight_format, str) and weight_format in self._formats:  # perhaps the name of a format object
            return weight_format
        fmt = get_format(weight_format) if isinstance(weight_format, str) else weight_format
        if not isinstance(fmt, Format):
            raise ValueError(f"weight_format = {weight_format!r}: give a name such as 'bf16' or a format object")
        if self._formats.setdefault(fmt.name, fmt) != fmt:
            raise ValueError(f"weight_format = {fmt!r}: another format named {fmt.name!r} is in use; use one of them")
        return fmt.name

    # -- parameters -----------------------------------------------------------------------------------------------

    def _adopt(self, p: Tensor, plan: Plan, group: dict[str, Any], number: int) -> None:
        """Give a new parameter its store and its states (zeros)."""
        state = self.state[p]
        state.update(step=0, id=number)
        dtype = DTYPES[group["state_dtype"] or name_of(p.dtype)]
        for name, shape in state_shapes(plan.rule, local(p).shape, plan.constants).items():
            state[name] = torch.zeros(shape, dtype=dtype, device=local(p).device)
        self._slots[p] = self._slot(p, plan, group)
        self._slots[p].store.initialise()

    def _slot(self, p: Tensor, plan: Plan, group: dict[str, Any]) -> _Slot:
        state = self.state[p]
        key = {"seed": group["seed"], "tensor_id": state["id"], "position": position_of(p)}
        store = WeightStore(plan.store, local(p), state, **key)
        return _Slot(plan, store, tuple(state_shapes(plan.rule, local(p).shape, plan.constants)), fixed(group))

    def _plan(self, p: Tensor, group: dict[str, Any]) -> Plan:
        fmt = self._formats[self._register(group["weight_format"] or name_of(p.dtype))]
        state_dtype = group["state_dtype"] or name_of(p.dtype, key="state_dtype")
        store = StorePlan(
            fmt,
            write_back=group["write_back"],
            shadow=group["shadow"],
            shadow_dtype=DTYPES[group["shadow_dtype"] or state_dtype],
            carry_dtype=DTYPES[group["carry_dtype"] or "bf16"],
        )
        plan = Plan(self.rule, constants(group, compress=self._compresses(p, group)), store)
        _check_sharding(p, plan)
        return plan

    @staticmethod
    def _compresses(p: Tensor, group: dict[str, Any]) -> bool:
        wanted = group.get("apollo_scope") == "all_2d" or group.get("role", "projection") == "projection"
        # The whole shape decides, not a shard's: a short shard is refused as any other, not quietly left uncompressed.
        return group.get("second_moment") == "apollo_e" and wanted and can_compress(p.shape, group["apollo_rank"])

    def store_of(self, p: Tensor) -> WeightStore:
        """The weight store of a parameter: `read()` gives the stored weight in float32. ValueError if it has none."""
        if p not in self._slots:
            raise ValueError("this tensor is no parameter of the optimizer, or a frozen one: nothing is stored for it")
        return self._slots[p].store

    @torch.no_grad()
    def reload_weights(self, values: Mapping[Tensor, Tensor] | None = None) -> None:
        """Take weights anew after parameters were written to from outside. Moments and step counts stay.

        values: parameter -> its new values, for these parameters only; they may be finer than the format (for example
            the float32 ones that a bf16 model was made from), and masters, codes and carries are built from them.
            None: read the parameters that were written to; all others keep masters, codes and carries as they are.
        Raises ValueError, before any change, for a key that is no parameter of the optimizer and for another shape.
        """
        if values is not None:
            _check_values(values, self._slots)
        for p, slot in self._slots.items():
            if values is not None and p in values:
                slot.store.initialise(local(values[p]))
            elif values is None and slot.store.was_written():
                slot.store.initialise()

    # -- the step -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. ValueError, before any change, for bad options, sparse
        gradients, and weights that were written to from outside."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [(n, p, group, self._slots.get(p)) for n, (p, group) in enumerate(self._members()) if p.grad is not None]
        for group in self.param_groups:
            check_moving(group)
        shared = {id(group): _Shared(group) for group in self.param_groups}
        for _, p, group, slot in work:
            _check_gradient(p)
            if slot is not None:
                shared[id(group)].check(slot)
                slot.store.check_untouched()
        for new in [(p, self._plan(p, group), group, n) for n, p, group, slot in work if slot is None]:
            self._adopt(*new)  # frozen until now
        for _, p, group, slot in work:
            self._update(p, slot or self._slots[p], shared[id(group)])
        return loss

    def _update(self, p: Tensor, slot: _Slot, shared: _Shared) -> None:
        state, group = slot.store.state, shared.group
        t = state["step"] + 1
        operands = self._operands(p, slot, group, t)
        slot.plan = shared.plan(slot)
        if self.observer is not None:
            self.observer(p, observed_update(slot.plan, operands, shared.rates(t), t))
        elif group["compile"] and can_compile(operands.grad.device.type):
            if slot.compiled is None or slot.compiled.plan is not slot.plan:
                slot.compiled = CompiledUpdate(slot.plan)
            slot.compiled(operands, shared.rate_tensors(t))
        else:
            update(slot.plan, operands, shared.rates(t))
        state["step"] = t
        slot.store.remember()

    def _operands(self, p: Tensor, slot: _Slot, group: dict[str, Any], t: int) -> Operands:
        store, state = slot.store, slot.store.state
        projection = None
        if slot.compresses:
            projection = projection_at(t, store.param, group, tensor_id=state["id"])
        grad = p.grad
        assert grad is not None
        return Operands(
            copy=None if store.is_weight else store.param.detach(),
            stored=store.tensors,
            moments={name: state[name] for name in slot.moments},
            grad=grad if type(grad) is Tensor else local(grad),
            bits=store.draw(t),
            projection=projection,
        )

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; every tensor keeps its dtype and bits, and compute copies are set to decode(store).

        Raises ValueError for a checkpoint of another rule, form, write-back, format or model.
        """
        handle = self.register_load_state_dict_pre_hook(box)  # last, so after any hook of the user
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_formats": self._formats}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by torch after unpickling, deep copies and loading: the stores are built again on the new state."""
        super().__setstate__(state)
        self.__dict__.setdefault("observer", None)
        self._slots = {}
        for p, group in self._members():
            if self.state.get(p):  # a frozen parameter has none
                self.state[p] = {key: unbox(value, local(p).device) for key, value in self.state[p].items()}
                self._slots[p] = self._slot(p, self._plan(p, group), group)
                self._slots[p].store.restored()


def _is_trained(p: Tensor) -> bool:
    """Whether the optimizer takes `p` now; ValueError if it never could."""
    if not p.is_floating_point():
        raise ValueError(f"a parameter is {p.dtype}: only floating-point parameters can be trained; leave it out")
    return p.requires_grad


def _check_values(values: Mapping[Tensor, Tensor], known: Mapping[Tensor, Any]) -> None:
    for p in values:
        if p not in known:
            what = f"a tensor of shape {tuple(p.shape)}" if isinstance(p, Tensor) else repr(p)
            raise ValueError(
                f"reload_weights got {what} as a key, which is no parameter that this optimizer trains: give a mapping "
                "from its own parameters to values"
            )
        value = values[p]
        if not isinstance(value, Tensor) or local(value).shape != local(p).shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(f"reload_weights got {got!r} for a parameter of shape {tuple(p.shape)}: give that shape")


def _check_gradient(p: Tensor) -> None:
    assert p.grad is not None
    if p.grad.layout != torch.strided:
        raise ValueError("a gradient is sparse: build the layer with sparse=False (nn.Embedding(..., sparse=False))")


def _check_sharding(p: Tensor, plan: Plan) -> None:
    """What needs more than this rank's rows cannot be done on a shard."""
    whole = plan.store.format.name.startswith("nvfp4") or plan.constants.second_moment == "apollo_e"
    whole = whole or plan.constants.multiplicative_form == "normalized_rho_tensor"
    whole = whole or plan.constants.block_scale_exponent != 0
    # Blocks run along the last dimension; tiles (`block_shape`) of several rows along the last two.
    tiled = getattr(plan.store.format, "block", (1, 1))[0] > 1
    blocks_cut = plan.store.format.dtype is None and splits(p, last=2 if tiled else 1)
    if is_split(p) and (whole or blocks_cut):
        raise ValueError(
            "a sharded parameter with nvfp4, apollo_e, normalized_rho_tensor, block_scale_exponent, or blocks or tiles "
            "cut by the sharding: these need the whole parameter; replicate it (DDP), or shard along the first "
            "dimension with an fp8 format whose blocks are rows (block_size, not block_shape)"
        )
