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
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from mpadam.numerics import get_format
from mpadam.numerics.base import Format
from mpadam.optim.apollo import can_compress, projection_matrix
from mpadam.optim.hyperparameters import hyperparameters_of
from mpadam.optim.names import OptimizerName, check_choices
from mpadam.optim.rules import Constants, Rates, state_shapes
from mpadam.optim.sharding import is_split, local, position_of, splits_rows
from mpadam.optim.store import StorePlan, WeightStore
from mpadam.optim.update import Observation, Operands, Plan, compiled_update, observed_update, update

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: options of a group that a checkpoint must share with the optimizer it is loaded into
_IDENTITY = (
    *("rule", "multiplicative_form", "second_moment", "write_back", "weight_format"),
    *("state_dtype", "carry_dtype", "shadow", "shadow_dtype"),
)


@dataclass
class _Slot:
    """What the optimizer knows about one parameter beside its state."""

    plan: Plan
    store: WeightStore
    moments: tuple[str, ...]

    @property
    def compresses(self) -> bool:
        return self.plan.constants.second_moment == "apollo_e"


@dataclass(frozen=True)
class _Box:
    """Hides a tensor from torch's `load_state_dict`, which would cast it to the parameter's dtype."""

    tensor: Tensor


class LowPrecisionOptimizer(torch.optim.Optimizer):
    """See the module; `rule` is set by the subclass, and `options` are the defaults of every group.

    observer: where set, called with (parameter, `Observation`) at each update; the step then runs eagerly.
    """

    rule: ClassVar[str]

    def __init__(self, params: Iterable[Any], options: dict[str, Any]) -> None:
        self._slots: dict[Tensor, _Slot] = {}
        self._formats: dict[str, Format] = {}
        self.observer: Callable[[Tensor, Observation], None] | None = None
        super().__init__(params, options | {"rule": self.rule})

    # -- groups ---------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; ValueError for a bad hyper-parameter or a parameter that has no weight format."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._normalise(group)
            plans = [self._plan(p, group) for p in group["params"]]
        except ValueError:
            self.param_groups.pop()
            raise
        for p, plan in zip(group["params"], plans, strict=True):
            self._adopt(p, plan, group)

    def _normalise(self, group: dict[str, Any]) -> None:
        """Check the options of a group; formats and dtypes become names, which any checkpoint can hold."""
        check_choices(group)
        if not isinstance(group.get("betas", ()), (tuple, list)) or len(group.get("betas", (0, 0))) != 2:
            raise ValueError(f"betas = {group['betas']!r}: give a pair such as (0.87, 0.98)")
        name = OptimizerName(self.rule, group.get("multiplicative_form"), group.get("second_moment", "full"))
        for key, hyperparameter in hyperparameters_of(name).items():
            hyperparameter.check(_number(_option(group, key)))
        if group["weight_format"] is not None:
            group["weight_format"] = self._register(group["weight_format"])
        for key in ("state_dtype", "carry_dtype", "shadow_dtype"):
            group[key] = _dtype_name(key, group[key])
        if not isinstance(group["seed"], int) or not 0 <= group["seed"] < 2**63:
            raise ValueError(f"seed = {group['seed']!r}: give a whole number from 0, below 2**63")
        group.setdefault("base_lr", float(group["lr"]))
        if group.get("tie_lr_mult") and group["base_lr"] == 0.0:
            raise ValueError("tie_lr_mult = True with lr = 0: lr_mult follows lr / initial lr; give lr above 0")

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

    def _adopt(self, p: Tensor, plan: Plan, group: dict[str, Any]) -> None:
        """Give a new parameter its store and its states (zeros)."""
        state = self.state[p]
        state.update(step=0, id=len(self._slots))
        dtype = DTYPES[group["state_dtype"] or _name_of(p.dtype)]
        for name, shape in state_shapes(plan.rule, local(p).shape, plan.constants).items():
            state[name] = torch.zeros(shape, dtype=dtype, device=local(p).device)
        self._slots[p] = self._slot(p, plan, group)
        self._slots[p].store.initialise()

    def _slot(self, p: Tensor, plan: Plan, group: dict[str, Any]) -> _Slot:
        state = self.state[p]
        key = {"seed": group["seed"], "tensor_id": state["id"], "position": position_of(p)}
        store = WeightStore(plan.store, local(p), state, **key)
        return _Slot(plan, store, tuple(state_shapes(plan.rule, local(p).shape, plan.constants)))

    def _plan(self, p: Tensor, group: dict[str, Any]) -> Plan:
        if not p.is_floating_point():
            raise ValueError(f"a parameter is {p.dtype}: only floating-point parameters can be trained; leave it out")
        fmt = self._formats[self._register(group["weight_format"] or _name_of(p.dtype))]
        state_dtype = group["state_dtype"] or _name_of(p.dtype, key="state_dtype")
        store = StorePlan(
            fmt,
            write_back=group["write_back"],
            shadow=group["shadow"],
            shadow_dtype=DTYPES[group["shadow_dtype"] or state_dtype],
            carry_dtype=DTYPES[group["carry_dtype"] or "bf16"],
        )
        plan = Plan(self.rule, _constants(group, compress=self._compresses(p, group)), store)
        _check_sharding(p, plan)
        return plan

    @staticmethod
    def _compresses(p: Tensor, group: dict[str, Any]) -> bool:
        wanted = group.get("apollo_scope") == "all_2d" or group.get("role", "projection") == "projection"
        return (
            group.get("second_moment") == "apollo_e" and wanted and can_compress(local(p).shape, group["apollo_rank"])
        )

    def store_of(self, p: Tensor) -> WeightStore:
        """The weight store of a parameter: `read()` gives the stored weight in float32."""
        return self._slots[p].store

    @torch.no_grad()
    def reload_weights(self, values: Mapping[Tensor, Tensor] | None = None) -> None:
        """Take the weights anew from the parameters, after they were written to from outside.

        values: parameter -> finer values (for example the float32 ones that a bf16 model was made from), from which
            masters, codes and carries are then built. Moments and step counts stay.
        """
        for p, slot in self._slots.items():
            slot.store.initialise(None if values is None or p not in values else local(values[p]))

    # -- the step -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. ValueError, before any change, for sparse gradients and
        for compute copies that were written to from outside."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, _ in work:
            _check_gradient(p)
            self._slots[p].store.check_untouched()
        for p, group in work:
            self._update(p, group)
        return loss

    def _update(self, p: Tensor, group: dict[str, Any]) -> None:
        slot, state = self._slots[p], self.state[p]
        t = state["step"] + 1
        operands, rates = self._operands(p, slot, group, t), rates_at(group, t)
        plan = replace(slot.plan, constants=_constants(group, compress=slot.compresses))  # options may have moved
        if group["compile"] and self.observer is None:
            compiled_update(plan, operands, rates)
        elif self.observer is None:
            update(plan, operands, rates)
        else:
            self.observer(p, observed_update(plan, operands, rates, t))
        state["step"] = t
        slot.store.remember()

    def _operands(self, p: Tensor, slot: _Slot, group: dict[str, Any], t: int) -> Operands:
        state, store = self.state[p], slot.store
        projection = None
        if slot.compresses:
            projection = projection_matrix(
                store.param.shape,
                group["apollo_rank"],
                seed=group["seed"],
                tensor_id=state["id"],
                refresh=(t - 1) // group["apollo_refresh"],
                device=store.param.device,
            )
        return Operands(
            copy=None if store.is_weight else store.param.detach(),
            stored=store.tensors,
            moments={name: state[name] for name in slot.moments},
            grad=local(p.grad),  # type: ignore[arg-type]
            bits=store.bits(t),
            projection=projection,
        )

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; every tensor keeps its dtype and bits, and compute copies are set to decode(store).

        Raises ValueError for a checkpoint of another rule, form, write-back, format or model.
        """
        handle = self.register_load_state_dict_pre_hook(_box)  # last, so after any hook of the user
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
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {key: _unbox(value, local(p).device) for key, value in self.state[p].items()}
                self._slots[p] = self._slot(p, self._plan(p, group), group)
                self._slots[p].store.refresh_copy()


def rates_at(group: Mapping[str, Any], t: int) -> Rates:
    """The rates of update `t` (from 1) from the options of a group, in double precision."""
    lr = float(group["lr"])
    branches = "lr_mult" in group
    lr_mult = float(group["lr_mult"]) if branches else 0.0
    if group.get("tie_lr_mult"):
        lr_mult *= lr / group["base_lr"]
    decay = lr * group["weight_decay"] + (lr_mult * group["weight_decay_mult"] if branches else 0.0)
    beta1, beta2 = _option(group, "beta1"), _option(group, "beta2")
    multiplicative = lr if group["rule"] == "madam" else lr_mult
    return Rates(lr / (1.0 - beta1**t), multiplicative, decay, 1.0 - beta2**t)


def _option(group: Mapping[str, Any], key: str) -> Any:
    """An option of a group, where `betas` holds beta1 and beta2 (Madam has no beta1)."""
    if key in ("beta1", "beta2") and "betas" in group:
        return group["betas"][0 if key == "beta1" else 1]
    return group.get(key, 0.0) if key == "beta1" else group[key]


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _constants(group: Mapping[str, Any], *, compress: bool) -> Constants:
    given = {f.name: group[f.name] for f in fields(Constants) if f.name in group}
    betas = {key: _option(group, key) for key in ("beta1", "beta2")}
    return Constants(**given | betas | {"second_moment": "apollo_e" if compress else "full"})


def _name_of(dtype: torch.dtype, *, key: str = "weight_format") -> str:
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise ValueError(f"a parameter is {dtype}: say {key}='fp32' or 'bf16', or convert the model to one of them")


def _dtype_name(key: str, dtype: Any) -> str | None:
    for name, known in DTYPES.items():
        if dtype in (name, known):
            return name
    if dtype is None:
        return None
    raise ValueError(f"{key} = {dtype!r}: give 'fp32', 'bf16' or None")


def _check_gradient(p: Tensor) -> None:
    assert p.grad is not None
    if p.grad.layout != torch.strided:
        raise ValueError("a gradient is sparse: build the layer with sparse=False (nn.Embedding(..., sparse=False))")


def _check_sharding(p: Tensor, plan: Plan) -> None:
    """What needs more than this rank's rows cannot be done on a shard."""
    whole = plan.store.format.name.startswith("nvfp4") or plan.constants.second_moment == "apollo_e"
    whole = whole or plan.constants.multiplicative_form == "normalized_rho_tensor"
    blocks_cut = plan.store.format.dtype is None and splits_rows(p)
    if is_split(p) and (whole or blocks_cut):
        raise ValueError(
            "a sharded parameter with nvfp4, apollo_e, normalized_rho_tensor or blocks cut by the sharding: these need "
            "the whole parameter; replicate it (DDP), or shard along the first dimension with an fp8 format"
        )


def _box(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Load hook: refuse a checkpoint that does not fit, and hide its tensors from torch's cast."""
    _check_fits(optimizer, state_dict)
    boxed = {
        key: {name: _Box(value) if isinstance(value, Tensor) else value for name, value in state.items()}
        for key, state in state_dict["state"].items()
    }
    return state_dict | {"state": boxed}


def _unbox(value: Any, device: torch.device) -> Any:
    return value.tensor.detach().to(device, copy=True) if isinstance(value, _Box) else value


def _check_fits(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    saved_groups = state_dict["param_groups"]
    for saved, group in zip(saved_groups, optimizer.param_groups, strict=False):
        for key in _IDENTITY:
            if saved.get(key) != group.get(key):
                raise ValueError(
                    f"the checkpoint has {key} = {saved.get(key)!r} and the optimizer {group.get(key)!r}: "
                    "build the optimizer as the one that was saved"
                )
    saved_ids = chain.from_iterable(group["params"] for group in saved_groups)
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for saved_id, p in zip(saved_ids, params, strict=False):
        ours, theirs = _layout(optimizer.state[p]), _layout(state_dict["state"].get(saved_id, {}))
        if ours != theirs:
            raise ValueError(f"the checkpoint keeps {theirs} for parameter {saved_id}, the optimizer {ours}")


def _layout(state: Mapping[str, Any]) -> dict[str, Any]:
    return {k: (tuple(v.shape), str(v.dtype)) if isinstance(v, Tensor) else "number" for k, v in sorted(state.items())}
