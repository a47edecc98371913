"""The weight store: format + write-back + carry. The only place that rounds weights.

    plan.read(tensors, shape) -> w32                   the stored weight in float32
    plan.write(tensors, w32, delta, bits) -> Written   w32 + delta rounded to the format; the decay is part of delta
    plan.error(written)                                what the rounding lost, for a write-back that passes it on
    plan.part_writer(...)                              what a part of an update would leave, for probes

A `StorePlan` is pure: tensors in, tensors out, eager or compiled. `WeightStore` binds one to a parameter.

What a parameter is. If its dtype is the weight format, the parameter is the stored weight. Otherwise the store holds
the weight (float32 master, codes and scales) and the parameter is its compute copy: decode(store) after construction
and after every write. A write to a compute copy from outside would be lost, so it is noticed and refused; so is one
to a weight whose Kahan carry would no longer belong to it.

Write-backs: `nearest`; `stochastic`, whose bits are a function of (seed, t, parameter id, flat index); `kahan`, which
keeps what rounding lost (`carry`) and adds it to the next step; `eco` and `eco_stochastic`, which round to nearest and
stochastically and hand `error` to the rule's first moment. In float32 all of them are the same. A bf16 carry holds
8 bits below the weight's own: 16 in bf16, but 11 in e5m2 and 10 in e2m1, where steps below 2^-12 |w| are lost again
unless the carry is float32.

Shadow, for formats that store codes: `none`, one rounding; `refreshed`, decoded into the shadow dtype, updated there,
then encoded, two roundings; `persistent`, a hidden master in the shadow dtype, which is what the rule reads. A
stochastic write-back rounds what is kept: with `refreshed` the change that the shadow sees and the codes, with
`persistent` the hidden master alone, whose codes are its nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mpadam.numerics.base import Encoded, Format, Rounding
from mpadam.numerics.bits import bit_keys, bits_of, more_bits
from mpadam.numerics.grids import spacing
from mpadam.numerics.rounding import round_bf16
from mpadam.optim.names import BY_CHANCE, ERROR_FEEDBACK, check_choices
from mpadam.optim.seen import GPU_LOOKS_EVERY, Seen, checksum, place_of, sample
from mpadam.optim.sharding import local

_CODE = "weight."  # prefix of the encoded tensors among the tensors of a store


@dataclass(frozen=True)
class StorePlan:
    """How a weight is kept. Raises ValueError for combinations that have no meaning."""

    format: Format
    write_back: str = "nearest"
    shadow: str = "none"
    shadow_dtype: torch.dtype = torch.bfloat16
    carry_dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        check_choices({"write_back": self.write_back, "shadow": self.shadow})
        if self.shadow != "none" and self.format.dtype is not None:
            raise ValueError(
                f"shadow = {self.shadow!r} with weight_format = {self.format.name!r}: a shadow accompanies codes; "
                "give an fp8 or nvfp4 format, or shadow='none'; where only some groups hold codes, set shadow in those "
                "groups' dicts"
            )
        if self.shadow != "none" and self.write_back in {"kahan", *ERROR_FEEDBACK}:
            keeper = "the carry" if self.write_back == "kahan" else "the first moment"
            raise ValueError(
                f"write_back = {self.write_back!r} with shadow = {self.shadow!r}: {keeper} already keeps what a shadow "
                "would; choose one of the two"
            )

    @property
    def has_carry(self) -> bool:
        """float32 arithmetic loses nothing on its way into a float32 weight: nothing to carry."""
        return self.write_back == "kahan" and self.format.dtype != torch.float32

    @property
    def needs_bits(self) -> bool:
        return self.write_back in BY_CHANCE and self.format.dtype != torch.float32

    @property
    def feeds_back(self) -> bool:
        """Whether `error` belongs into the rule's first moment."""
        return self.write_back in ERROR_FEEDBACK and self.format.dtype != torch.float32

    def initial(self, x: Tensor) -> dict[str, Tensor]:
        """The tensors of a store that holds float32 `x` [*shape], which may be finer than the format.

        The carry starts as what the format cannot hold of it, and a persistent shadow as the values themselves.
        """
        new = self._encode(x, None, previous=None)
        if self.has_carry:
            new["carry"] = (x - self.decode(new, x.shape)).to(self.carry_dtype)
        if self.shadow == "persistent":
            new["shadow"] = x.to(self.shadow_dtype)
        return new

    def read(self, tensors: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """The weight that the rule sees, float32 [*shape]; it may share memory with `tensors`."""
        return tensors["shadow"].to(torch.float32) if self.shadow == "persistent" else self.decode(tensors, shape)

    def decode(self, tensors: Mapping[str, Tensor], shape: torch.Size, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the format holds, [*shape] in `dtype`: the compute copy in the parameter's."""
        return self.format.decode(encoded(tensors, shape), torch.float32).to(dtype)  # a cast, as in `_encode`

    def write(self, tensors: Mapping[str, Tensor], w32: Tensor, delta: Tensor, bits: Tensor | None) -> Written:
        """The store after `w32 + delta` is written; changes nothing in place (the rounding site).

        tensors: the store before.  w32: float32 [*shape], what `read` gives.  delta: float32, broadcasts against it.
        bits: int32 [*shape] where `needs_bits`, else None.
        """
        target, shadow = self.target(tensors, w32, delta, bits), {}
        if self.shadow == "persistent":
            shadow, bits = {"shadow": target.to(self.shadow_dtype)}, None
        new = self._encode(target, None if self.has_carry else bits, previous=encoded(tensors, w32.shape))
        written = Written(shadow | new, target)
        if self.has_carry:
            written.tensors["carry"] = self.error(written).to(self.carry_dtype)
        return written

    def error(self, written: Written) -> Tensor:
        """What rounding lost in a write, float32 [*shape]: the value that was to be stored minus the stored one."""
        return written.target - self.read(written.tensors, written.target.shape)

    def part_writer(
        self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], w32: Tensor, bits: Tensor | None
    ) -> Callable[[Tensor], Tensor]:
        """part of a step (float32, broadcasts) -> the stored weight that it alone would leave, float32 [*shape].

        A block format chooses its scales again with every write, and NVFP4 a scale of the whole tensor. A weight that
        moves only because its scale did has not been updated, and a part that is written by itself would have other
        scales. So every part, and the write of nothing that it is compared with, is rounded on the scales of the whole
        update, with the same bits and the same carry.

        before, after: the store around the whole update.  w32, bits: as `write` got them.
        """
        if self.shadow == "persistent":  # the weight that the rule sees is the shadow
            return lambda part: self.target(before, w32, part, bits)
        rounded = self.format.rounding_on(encoded(after, w32.shape))
        return lambda part: rounded(self.target(before, w32, part, bits), bits)

    def spacing(self, after: Mapping[str, Tensor], w32: Tensor) -> Tensor:
        """Distance from |w32| to the next larger weight that `part_writer` can leave, float32 [*shape]."""
        if self.shadow == "persistent":
            return spacing(w32, "bf16" if self.shadow_dtype is torch.bfloat16 else "fp32")
        return self.format.spacing_on(encoded(after, w32.shape), w32)

    def target(self, tensors: Mapping[str, Tensor], w32: Tensor, delta: Tensor, bits: Tensor | None) -> Tensor:
        """What is handed to the format, float32 [*shape].

        Kahan: the step and what earlier roundings lost are added together. A `refreshed` shadow hands over itself to
        nearest; its dtype need not hold the stored weight exactly, so under stochastic rounding, where that would move
        weights that no update moves, it is the stored weight and the shadow's change.
        """
        if self.has_carry:
            return w32 + (delta + tensors["carry"].to(torch.float32))
        if self.shadow == "persistent":
            return self._in_shadow(w32 + delta, bits)
        if self.shadow == "none":
            return w32 + delta
        shadow = self._in_shadow(w32)
        if bits is None:
            return self._in_shadow(shadow + delta)
        return w32 + (self._in_shadow(shadow + delta, more_bits(bits)) - shadow)

    def _in_shadow(self, x: Tensor, bits: Tensor | None = None) -> Tensor:
        """float32 `x` through the shadow's dtype, to nearest or, with `bits`, stochastically."""
        if bits is not None and self.shadow_dtype is torch.bfloat16:
            return round_bf16(x, "stochastic", bits).to(torch.float32)
        return x.to(self.shadow_dtype).to(torch.float32)

    def _encode(self, x: Tensor, bits: Tensor | None, *, previous: Encoded | None) -> dict[str, Tensor]:
        if bits is None and self.format.dtype is not None:
            # The cast is `encode` in a single operation; a compiled graph keeps it as `mpadam.optim.compiled` says.
            return {_CODE + "codes": x.to(self.format.dtype)}
        rounding: Rounding = "nearest" if bits is None else "stochastic"
        new = self.format.encode(x, rounding=rounding, bits=bits, previous=previous)
        return {_CODE + name: tensor for name, tensor in new.tensors.items()}


class Written(NamedTuple):
    """A write that is not put in place: the store's tensors after it, and what was to be stored, float32 [*shape]."""

    tensors: dict[str, Tensor]
    target: Tensor


def encoded(tensors: Mapping[str, Tensor], shape: torch.Size) -> Encoded:
    """What the format stores, among the tensors of a store."""
    return Encoded({k.removeprefix(_CODE): t for k, t in tensors.items() if k.startswith(_CODE)}, shape)


class Draw(NamedTuple):
    """What the rounding bits of one tensor in one update are a function of.

    keys: two words, of seed, tensor id and update number; a compiled update takes them as 0-d int64 tensors.
    position: flat index, in the unsharded parameter, of the first element, or of every element (int64).
    short: whether no flat index needs more than 32 bits.
    """

    keys: tuple[int | Tensor, int | Tensor]
    position: int | Tensor
    short: bool

    def tensors(self) -> tuple[Tensor, ...]:
        """Both keys and the position as int64 tensors."""
        if isinstance(self.position, Tensor):
            return (*torch.tensor(self.keys, device=self.position.device).unbind(), self.position)
        return torch.tensor((*self.keys, self.position), device="cpu").unbind()  # whatever the default device is

    def bits(self, shape: torch.Size, device: torch.device) -> Tensor:
        """32 random bits per element, int32 of `shape`."""
        index = self.position
        if not isinstance(index, Tensor) or index.shape != shape:
            index = _flat_index(shape, index, device)
        return bits_of(index, self.keys, short=self.short)


def draw_of(*, seed: int, tensor_id: int, t: int, position: int | Tensor = 0, count: int = 0) -> Draw:
    """The draw of update `t` of a tensor of `count` elements at `position`."""
    short = isinstance(position, int) and position + count <= 2**32
    return Draw(bit_keys(seed, tensor_id, t), position, short)


def _flat_index(shape: torch.Size, start: int | Tensor, device: torch.device) -> Tensor:
    if isinstance(start, int):
        return torch.arange(start, start + shape.numel(), dtype=torch.int64, device=device).reshape(shape)
    return (torch.arange(shape.numel(), dtype=torch.int64, device=device) + start).reshape(shape)


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal everywhere, NaN like NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


class WeightStore:
    """The stored weight of one parameter.

    plan: format, write-back and shadow.
    parameter: the weight itself, or its compute copy; of a DTensor this rank's part, which is looked up at each use:
        FSDP2, and what moves a model to another device or dtype and back, give a parameter other local tensors.
    state: the optimizer's state of this parameter; the tensors that the store owns live in it.
    seed, tensor_id, position: with the update number, what the rounding bits are a function of; position is where
        the local tensor lies in the unsharded parameter: the flat index of its first element, or of every element.
    """

    def __init__(
        self,
        plan: StorePlan,
        parameter: Tensor,
        state: dict,
        *,
        seed: int = 0,
        tensor_id: int = 0,
        position: int | Tensor = 0,
    ) -> None:
        self.plan, self.parameter, self.state = plan, parameter, state
        self.seed, self.tensor_id, self.position = seed, tensor_id, position
        self.dtype, self.shape = parameter.dtype, self.param.shape
        self.is_weight = plan.format.dtype == parameter.dtype
        self._seen: Seen | None = None

    @property
    def param(self) -> Tensor:
        """The local tensor of the parameter as it is now."""
        return local(self.parameter)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything the store keeps, by name: `weight.*`, and `carry` and `shadow` where the plan has them."""
        own = {k: t for k, t in self.state.items() if k.startswith(_CODE) or k in ("carry", "shadow")}
        return own | ({_CODE + "codes": self.param.detach()} if self.is_weight else {})

    def read(self) -> Tensor:
        """The stored weight, float32, shape of the parameter, in memory of its own."""
        return self.plan.read(self.tensors, self.param.shape).clone()

    def draw(self, t: int) -> Draw | None:
        """Where the random bits of update `t` come from, or None where rounding needs none."""
        if not self.plan.needs_bits:
            return None
        return draw_of(seed=self.seed, tensor_id=self.tensor_id, t=t, position=self.position, count=self.param.numel())

    @torch.no_grad()
    def refresh_copy(self) -> None:
        """Set the compute copy to decode(store) and remember its version."""
        if not self.is_weight:
            self.param.copy_(self.plan.decode(self.tensors, self.shape, self.dtype))
        self.remember()

    def remember(self) -> None:
        """The parameter as it is now is the store's own work."""
        self._seen = self._look()

    def take_over(self, former: WeightStore) -> None:
        """This store goes on with the state of `former`: what that one remembers of the weight still holds, unless
        weight and state have got another shape together."""
        self._seen = former._seen if former.shape == self.shape else None

    def follow_device(self) -> None:
        """Bring the state to where the parameter is now (after `model.to(device)`)."""
        device = self.param.device
        for name, value in self.state.items():
            if isinstance(value, Tensor) and value.device != device:
                if "meta" in (value.device.type, device.type):
                    raise ValueError(
                        f"the state of a parameter of shape {tuple(self.shape)} is on {value.device} and the parameter "
                        f"on {device}: nothing can be moved from or to meta; build the optimizer on the model as it is"
                    )
                self.state[name] = value.to(device)
        if isinstance(self.position, Tensor) and self.position.device != device:
            self.position = self.position.to(device)

    def says_no_more(self) -> bool:
        """Whether a store built again on the parameter would hold the same: nothing in this one is finer."""
        if self.plan.has_carry and bool(self.state["carry"].any()):
            return False
        if self.is_weight:
            return True
        copy = self.plan.decode(self.tensors, self.shape, self.dtype).to(torch.float32)
        return _same(copy, self.plan.read(self.tensors, self.shape))

    def restored(self) -> None:
        """The store's tensors came from a checkpoint. A parameter that is the weight is in the model's checkpoint,
        which may be loaded later: it goes with this carry as it is at the next update."""
        self.refresh_copy()
        if self.is_weight:
            self._seen = None

    @torch.no_grad()
    def initialise(self, values: Tensor | None = None) -> None:
        """Take the weight from `values` [*shape] (default: the parameter); see `StorePlan.initial`."""
        x = (self.param if values is None else values).detach().to(self.param.device, torch.float32)
        new = self.plan.initial(x)
        if self.is_weight:
            self.param.copy_(new.pop(_CODE + "codes"))
        self.state.update({name: tensor.clone() for name, tensor in new.items()})
        self.refresh_copy()

    def was_written(self) -> bool:
        """Whether what the store keeps no longer belongs to the parameter, since it was written to from outside.

        Values count, not addresses: writing the same ones is no write. A compute copy is compared with decode(store).
        Of a weight itself only a carry can be out of date, and one of zeros is not.
        """
        if not self.is_weight:
            return not _same(self.param, self.plan.decode(self.tensors, self.shape, self.dtype))
        return self._changed() and bool(self.state["carry"].any())

    def check_untouched(self) -> None:
        """Raise ValueError if the parameter changed its dtype or shape, or was written to from outside (see
        `was_written`)."""
        param = self.param
        if param.dtype != self.dtype:
            raise ValueError(
                f"a parameter was {self.dtype} when the optimizer was built and is {param.dtype} now: convert the "
                "model first (model.to(dtype)), then build the optimizer"
            )
        if param.shape != self.shape:
            raise ValueError(
                f"a parameter had shape {tuple(self.shape)} when the optimizer took it and has {tuple(param.shape)} "
                "now: build the optimizer on the model as it is"
            )
        if self._seen is not None and self._seen.place == place_of(param) and not (self._looks and self._changed()):
            return
        if self.was_written():
            kept = (
                "its Kahan carry belongs to the weight before"
                if self.is_weight
                else f"its weight in {self.plan.format.name} and the parameter is only a copy"
            )
            raise ValueError(
                f"a parameter of shape {tuple(self.param.shape)} was written from outside, but the optimizer holds "
                f"{kept}: call optimizer.reload_weights() after writing to parameters"
            )
        self.remember()

    @property
    def _looks(self) -> bool:
        """Whether the values after the present update are compared before the next one, whatever `place` says."""
        return self.param.device.type == "cpu" or self.state.get("step", 0) % GPU_LOOKS_EVERY == 0

    def _look(self) -> Seen:
        wanted = self.plan.has_carry if self.is_weight else self._looks
        return Seen(place_of(self.param), self._bits() if wanted else None)

    def _bits(self) -> Tensor:
        sampled = not self.is_weight and self.param.device.type == "cpu"
        return sample(self.param, self.state.get("step", 0)) if sampled else checksum(self.param)

    def _changed(self) -> bool:
        """Whether the parameter has other bits than those that the store left there, as far as it looked."""
        if self._seen is None or self._seen.bits is None:
            return False
        return not torch.equal(self._seen.bits.to(self.param.device), self._bits())
