"""The one optimizer class: rule x write-back x format behind `torch.optim.Optimizer`.

The public classes (`mpadam.optim.optimizer`) only name a rule and take their signature from its card. All that depends
on a parameter group can differ between groups. State of a parameter, in `optimizer.state[p]`:

    step, id        updates so far; number of the parameter, which the rounding bits are a function of
    m, v, v_e, v_r  moments of the rule, in the state dtype (rounded to nearest, whatever the write-back is)
    weight.*        the stored weight where the parameter is only its compute copy
    carry, shadow   where write-back or format ask for them

A checkpoint keeps every dtype and bit of it: torch's own `load_state_dict` would cast all of it to the parameter's.

That state is all there is. What is worked out from it (`Slot`) is looked up at each step, and worked out again where
a tool has put another parameter into a group, or another dict into the state.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import Signature
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from mpadam.numerics import get_format
from mpadam.numerics.base import Format
from mpadam.optim.apollo import can_compress, projection_at
from mpadam.optim.checkpoints import box, check_is_checkpoint, difference, layout, unbox
from mpadam.optim.checks import caution_rates, check_gradients, check_sharding, check_values, is_trained
from mpadam.optim.compiled import CompiledUpdate, can_compile, is_worthwhile
from mpadam.optim.matching import check_names
from mpadam.optim.options import (
    DTYPES,
    check_keys,
    check_moving,
    check_new,
    constants,
    fixed,
    name_of,
    plain,
    resolve,
)
from mpadam.optim.sharding import as_part, local, local_gradient, position_of
from mpadam.optim.slots import Shared, Slot
from mpadam.optim.store import StorePlan, WeightStore
from mpadam.optim.update import Operands, Plan, Preview, advance, float32_arithmetic, update

_NOTHING_STORED = "this tensor is no parameter of the optimizer, or a frozen one: nothing is stored for it"


class LowPrecisionOptimizer(torch.optim.Optimizer):
    """See the module; the subclass sets `rule`."""

    rule: ClassVar[str]
    signature: ClassVar[Signature]  # of the constructor: what the rule's card declares

    def __init__(self, params: Iterable[Any], *rates: Any, **options: Any) -> None:
        given = self.signature.bind(params, *rates, **options)
        given.apply_defaults()
        self._slots: dict[Tensor, Slot] = {}
        self._formats: dict[str, Format] = {}
        self._said: set[str] = set()  # what this optimizer has warned of
        super().__init__(given.arguments.pop("params"), given.arguments | {"rule": self.rule})

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
            plans = [(n, p, self._plan(p, group)) for n, p in enumerate(group["params"], first) if is_trained(p)]
        except ValueError:
            self.param_groups.pop()
            raise
        with float32_arithmetic(self._device_types()):
            for number, p, plan in plans:
                self._adopt(p, plan, group, number)
        caution_rates(group, self._said)

    def _members(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Every parameter with its group, in the order that numbers them."""
        return [(p, group) for group in self.param_groups for p in group["params"]]

    def _device_types(self) -> set[str]:
        return {p.device.type for p, _ in self._members()}

    def _normalise(self, group: dict[str, Any]) -> None:
        """Check the options of a group; formats and dtypes become names, which any checkpoint can hold."""
        check_new(group)
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
        taken = {state.get("id") for q, state in self.state.items() if q is not p}
        self.state[p] = self._zeros(p, plan, group, number if number not in taken else 1 + max(taken))
        self._slots[p] = self._slot(p, plan, group)
        self._slots[p].store.initialise()

    @staticmethod
    def _zeros(p: Tensor, plan: Plan, group: dict[str, Any], number: int) -> dict[str, Any]:
        dtype = DTYPES[group["state_dtype"] or name_of(p.dtype)]
        shapes = plan.state_shapes(local(p).shape)
        zeros = {name: torch.zeros(s, dtype=dtype, device=local(p).device) for name, s in shapes.items()}
        return {"step": 0, "id": number, **zeros}

    def _slot(self, p: Tensor, plan: Plan, group: dict[str, Any]) -> Slot:
        state = self.state[p]
        store = WeightStore(plan.store, p, state, seed=group["seed"], tensor_id=state["id"], position=position_of(p))
        return Slot(plan, store, tuple(plan.state_shapes(local(p).shape)), fixed(group))

    def _known(self, p: Tensor, group: dict[str, Any]) -> Slot | None:
        """The slot of a parameter of `group`, None if it has no state yet. ValueError if its state is gone, or is not
        one of this parameter."""
        slot, state = self._slots.get(p), self.state.get(p)
        if slot is None or slot.store.state is not state:
            if not state:
                self._forget(p)
                return None
            slot = self._found(p, group, slot)
        slot.store.follow_device()
        return slot

    def _found(self, p: Tensor, group: dict[str, Any], former: Slot | None) -> Slot:
        """The slot of a parameter whose state came to it by `state[p] = ...`, perhaps from the one it replaces."""
        state = self.state[p]
        before = [q for q, slot in self._slots.items() if slot.store.state is state and q is not p]
        former = self._slots[before[0]] if before else former  # a state may come in place of its own
        plan = self._plan(p, group)
        wanted = self._zeros(p, plan, group, 0)
        WeightStore(plan.store, torch.zeros_like(local(p)), wanted).initialise()
        different = difference(layout(state), layout(wanted), here="and its parameter needs")
        if different:
            raise ValueError(
                f"the state of a parameter of shape {tuple(p.shape)} holds {different}: move the state of one of the "
                "same shape and dtype, or build the optimizer on the new parameters"
            )
        slot = self._slots[p] = self._slot(p, plan, group)
        if former is not None:
            slot.fixed = former.fixed
            slot.store.take_over(former.store)
        for q in before:
            del self._slots[q]
        return slot

    def _forget(self, p: Tensor) -> None:
        """A parameter without state is new: frozen until now, or reset. ValueError if that would lose a weight."""
        former = self._slots.get(p)
        if former is not None and (former.plan.store.has_carry or not former.store.is_weight):
            raise ValueError(
                f"the state of a parameter of shape {tuple(p.shape)} is gone, and with it the weight in "
                f"{former.plan.store.format.name} or its carry: keep optimizer.state, or build another optimizer"
            )
        self._slots.pop(p, None)

    def _settle(self) -> None:
        """Look for states whose parameter is in no group any more. Where nothing was done or known yet, the parameters
        that came instead (Accelerate's do, under FSDP2) are taken as if the optimizer had been built on them.

        Raises ValueError otherwise: a new parameter would start from zero, and its weight from a rounded copy.
        """
        members = self._members()
        own = {p for p, _ in members}
        left = [q for q, state in self.state.items() if isinstance(q, Tensor) and state and q not in own]
        for q in left:
            slot = self._slots.get(q)
            if slot is None or self.state[q]["step"] or not slot.store.says_no_more():
                raise ValueError(
                    f"a parameter of shape {tuple(q.shape)} is in no group any more, but the "
                    "optimizer has its state: move it to the parameter that replaces it, optimizer.state[new] = "
                    "optimizer.state.pop(old), or drop it, optimizer.state.pop(old)"
                )
        for q in left:
            del self.state[q], self._slots[q]
        if left:
            new = [
                (p, self._plan(p, g), g, n)
                for n, (p, g) in enumerate(members)
                if p.requires_grad and p not in self.state
            ]
            for one in new:
                self._adopt(*one)

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
        check_sharding(p, plan)
        return plan

    @staticmethod
    def _compresses(p: Tensor, group: dict[str, Any]) -> bool:
        wanted = group.get("apollo_scope") == "all_2d" or group.get("role", "projection") == "projection"
        # The whole shape decides, not a shard's: a short shard is refused as any other, not quietly left uncompressed.
        return group.get("second_moment") == "apollo_e" and wanted and can_compress(p.shape, group["apollo_rank"])

    def store_of(self, p: Tensor) -> WeightStore:
        """The weight store of a parameter: `read()` gives the stored weight in float32. ValueError if it has none."""
        return self._slot_of(p).store

    def plan_of(self, p: Tensor) -> Plan:
        """What is fixed about the updates of a parameter. ValueError if nothing is stored for it."""
        return self._slot_of(p).plan

    def _slot_of(self, p: Tensor) -> Slot:
        slot = self._slots.get(p)
        if slot is None or slot.store.state is not self.state.get(p):  # moved: see the module
            slot = self._known(p, self._group_of(p))
        if slot is None:
            raise ValueError(_NOTHING_STORED)
        return slot

    def _group_of(self, p: Tensor) -> dict[str, Any]:
        for group in self.param_groups:
            if any(q is p for q in group["params"]):
                return group
        raise ValueError(_NOTHING_STORED)

    @torch.no_grad()
    def preview(self, p: Tensor, rows: Tensor | None = None) -> Preview:
        """The next update of a parameter that has a gradient: plan, operands, and what they come to. Nothing is
        changed, and the step that follows runs as if nobody had looked (compiled, it may differ in its last bits).

        rows: int64, of a matrix whose plan is `by_rows`: the update of these rows alone, [rows, columns]. With a scale
            of the whole tensor the row that decides it has to be among them.

        Raises ValueError for a sharded parameter: block scales and bins need the whole of it.
        """
        if isinstance(p, DTensor):
            raise ValueError(
                f"a preview of a parameter of shape {tuple(p.shape)} that is a DTensor: probes need whole "
                "parameters only; set probe_every: null, or replicate the parameters (DDP)"
            )
        store, group = self.store_of(p), self._group_of(p)
        slot, shared, t = self._slots[p], Shared(group), store.state["step"] + 1
        with float32_arithmetic({p.device.type}):
            plan, operands, rates = shared.plan(slot), self._operands(p, slot, group, t), shared.rates(t)
            operands = operands if rows is None else operands.of_rows(rows)
            return Preview(plan, operands, rates, advance(plan, operands, rates))

    @torch.no_grad()
    def reload_weights(self, values: Mapping[Tensor, Tensor] | None = None) -> None:
        """Take weights again after parameters were written to from outside. Moments and step counts stay.

        values: parameter -> its new values, for these parameters only; they may be finer than the format (for example
            the float32 ones that a bf16 model was made from), and masters, codes and carries are built from them.
            None: read the parameters that were written to; all others keep masters, codes and carries as they are.
        Raises ValueError, before any change, for a key that is no parameter of the optimizer and for another shape.
        """
        known = {p: slot.store for p, group in self._members() if (slot := self._known(p, group)) is not None}
        if values is not None:
            check_values(values, known)
        with float32_arithmetic(self._device_types()):
            for p, store in known.items():
                if values is not None and p in values:
                    store.initialise(local(values[p]))
                elif values is None and store.was_written():
                    store.initialise()

    # -- the step -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. ValueError, before any change, for bad options, sparse
        gradients, and weights that were written to from outside."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with float32_arithmetic(self._device_types()):
            self._step()
        return loss

    def _step(self) -> None:
        members = self._members()
        if not check_gradients((p for p, _ in members), warn="gradients" not in self._said):
            self._said.add("gradients")
        if any(p.grad is not None and p not in self._slots for p, _ in members):
            self._settle()
        work = [(n, p, group, self._known(p, group)) for n, (p, group) in enumerate(members) if p.grad is not None]
        for group in self.param_groups:
            check_moving(group)
            caution_rates(group, self._said)
        trained = sum(p.numel() for p, _ in members if p.requires_grad)
        shared = {
            id(group): Shared(group, compiles=is_worthwhile(group["compile"], trained, self._said))
            for group in self.param_groups
        }
        for _, _, group, slot in work:
            if slot is not None:
                shared[id(group)].check(slot)
                slot.store.check_untouched()
        for new in [(p, self._plan(p, group), group, n) for n, p, group, slot in work if slot is None]:
            self._adopt(*new)  # frozen until now
        for _, p, group, slot in work:
            self._update(p, slot or self._slots[p], shared[id(group)])

    def _update(self, p: Tensor, slot: Slot, shared: Shared) -> None:
        state, group = slot.store.state, shared.group
        t = state["step"] + 1
        operands = self._operands(p, slot, group, t)
        slot.plan = shared.plan(slot)
        if shared.compiles and can_compile(device := operands.grad.device.type):
            if slot.compiled is None or slot.compiled.plan.constants != shared.form(slot.compresses):
                slot.compiled = CompiledUpdate(slot.plan)
            slot.compiled(operands, shared.scalars(t, slot.compresses, device))
        else:
            update(slot.plan, operands, shared.rates(t))
        state["step"] = t
        slot.store.remember()

    def _operands(self, p: Tensor, slot: Slot, group: dict[str, Any], t: int) -> Operands:
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
            grad=grad if type(grad) is Tensor else local_gradient(grad, p),
            draw=store.draw(t),
            projection=projection,
        )

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; every tensor keeps its dtype and bits, and compute copies are set to decode(store).
        Where checkpoint and optimizer have names of parameters, these decide (see `mpadam.optim.matching`).
        Raises ValueError for a checkpoint of another rule, form, write-back, format or model.
        """
        check_is_checkpoint(state_dict)
        self._settle()
        handle = self.register_load_state_dict_pre_hook(box)  # last, so after any hook of the user
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """As in torch; what is kept for a sharded parameter (DTensor) is sharded as it is."""
        self._settle()
        check_names(self.param_groups, "optimizer")
        saved = super().state_dict()
        params = dict(enumerate(p for p, _ in self._members()))
        state = {
            key: {k: as_part(params[key], v) if isinstance(v, Tensor) else v for k, v in kept.items()}
            for key, kept in saved["state"].items()
        }
        groups = [{key: plain(value) for key, value in group.items()} for group in saved["param_groups"]]
        return saved | {"state": state, "param_groups": groups}

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_formats": self._formats, "_said": self._said}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by torch after unpickling, deep copies and loading: the stores are built again on the new state."""
        super().__setstate__(state)
        self._slots = {}
        with float32_arithmetic(self._device_types()):
            for p, group in self._members():
                if self.state.get(p):  # a frozen parameter has none
                    self.state[p] = {key: unbox(value, local(p).device) for key, value in self.state[p].items()}
                    self._slots[p] = self._slot(p, self._plan(p, group), group)
                    self._slots[p].store.restored()
