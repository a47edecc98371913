"""What a parameter, its gradient and values for it must be; each refusal is a ValueError with the remedy."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mpadam.optim.cautions import caution
from mpadam.optim.rules import RULES
from mpadam.optim.sharding import is_split, local, splits
from mpadam.optim.update import Plan


def is_trained(p: Tensor) -> bool:
    """Whether the optimizer takes `p` now; ValueError if it never could."""
    if not p.is_floating_point():
        raise ValueError(f"a parameter is {p.dtype}: only floating-point parameters can be trained; leave it out")
    return p.requires_grad


def check_values(values: Mapping[Tensor, Tensor], known: Mapping[Tensor, Any]) -> None:
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


def check_gradients(members: Iterable[Tensor], *, warn: bool) -> bool:
    """Whether there is a gradient; with `warn`, a warning if not. ValueError for one that is sparse or on meta."""
    graded = [p for p in members if p.grad is not None]
    for p in graded:
        assert p.grad is not None
        if p.grad.layout != torch.strided:
            raise ValueError(
                "a gradient is sparse: build the layer with sparse=False (nn.Embedding(..., sparse=False))"
            )
        if p.is_meta:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} is on the meta device and has no values: give the model its "
                "values (model.to_empty, then a checkpoint or an initialisation), then build the optimizer"
            )
    if warn and not graded:
        caution(
            "no parameter of the optimizer has a gradient, so the step changes nothing: call backward() first; if the "
            "model has got other parameters since the optimizer was built (load_state_dict(assign=True), fully_shard, "
            "to_empty), build the optimizer on the model as it is"
        )
    return bool(graded)


def check_sharding(p: Tensor, plan: Plan) -> None:
    """What needs more than this rank's rows cannot be done on a shard."""
    fmt = plan.store.format
    whole = fmt.whole or RULES[plan.rule].looks_at_whole(plan.constants)
    # Blocks run along the last dimension; tiles of several rows along the last two.
    blocks_cut = fmt.dtype is None and splits(p, last=2 if fmt.block[0] > 1 else 1)
    if is_split(p) and (whole or blocks_cut):
        raise ValueError(
            "a sharded parameter with nvfp4, apollo_e, normalized_rho_tensor, block_scale_exponent, or blocks or tiles "
            "cut by the sharding: these need the whole parameter; replicate it (DDP), or shard along the first "
            "dimension with an fp8 format whose blocks are rows (block_rows = 1)"
        )
