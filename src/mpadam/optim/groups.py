"""Parameter groups of a model: what is stored in low precision, what decays; the same for every optimizer.

Attention and MLP projections take the low-precision format; embeddings, norms and the head stay in bf16, or in float32
where the masters are float32 (docs/algorithm.md, "Where"). Norms and biases never decay. A weight that is tied to
another is one parameter and appears once, in the role where the model names it first.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from mpadam.numerics.base import Format

#: roles in the order of their groups; rounding bits follow this order, so it is part of the numbers
ROLES = ("projection", "embedding", "head", "other", "norm")


class Row(NamedTuple):
    """How one parameter is stored: a line of the listing."""

    name: str
    shape: tuple[int, ...]
    role: str
    weight_format: str
    dtype: str
    decays: bool
    tied: tuple[str, ...]


class _Owned(NamedTuple):
    name: str
    param: Tensor
    module: nn.Module
    tied: tuple[str, ...]


def _owned_parameters(model: nn.Module) -> Iterator[_Owned]:
    """Each trainable parameter once, with the module that names it first and its other names."""
    found: dict[Tensor, list[tuple[str, nn.Module]]] = {}
    for prefix, module in model.named_modules():
        for name, param in module.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(param, []).append((f"{prefix}.{name}" if prefix else name, module))
    for param, places in found.items():
        if param.requires_grad:
            (name, module), *others = places
            yield _Owned(name, param, module, tuple(other for other, _ in others))


_NORM = re.compile(
    r"norm(\d+d)?$", re.IGNORECASE
)  # LayerNorm, LlamaRMSNorm, BatchNorm2d: also those that are no torch's
_BIAS = re.compile(r"(^|_)bias($|_)")


def _role(owned: _Owned, head: nn.Module | None) -> str:
    module, leaf = owned.module, owned.name.rsplit(".", 1)[-1]
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if owned.param.ndim < 2 or _NORM.search(type(module).__name__) or _BIAS.search(leaf):  # gains and biases
        return "norm"
    if module is head or owned.name.split(".")[-2:-1] == ["lm_head"]:
        return "head"
    return "projection" if owned.param.ndim == 2 and _multiplies(module) else "other"


def _multiplies(module: nn.Module) -> bool:
    """Whether the matrices of a module are those of matrix multiplications.

    Transformer Engine's and this project's FP8 layers are, without being nn.Linear; so are attention's projections in
    torch's own module, and the Conv1D of GPT-2, which is a linear layer with its weight transposed.
    """
    attention = isinstance(module, nn.MultiheadAttention)
    return attention or hasattr(module, "in_features") or (type(module).__name__ == "Conv1D" and hasattr(module, "nf"))


def _output_layer(model: nn.Module) -> nn.Module | None:
    getter = getattr(model, "get_output_embeddings", None)
    return getter() if callable(getter) else None


def parameter_groups(
    model: nn.Module,
    *,
    weight_format: str | Format = "bf16",
    other_format: str | None = None,
    weight_decay: float | None = None,
    weight_decay_mult: float | None = None,
    embedding_decay: bool = True,
    head: nn.Module | None = None,
) -> list[dict[str, Any]]:
    """One group per role, with parameter names; pass the list to any optimizer of `mpadam`.

    weight_format: of the projections.  other_format: of all else; None is "fp32" with float32 masters, else "bf16".
    weight_decay, weight_decay_mult: of what decays; None leaves the optimizer's own default. weight_decay_mult is for
        rules with two branches only: AdamW and Madam refuse groups that have one.
    embedding_decay: whether embeddings decay (a tied head goes with its embedding).
    head: the output layer. None takes what the model's `get_output_embeddings()` gives and layers named `lm_head`; any
        other layer cannot be told from a projection, so name it.
    """
    other = other_format or ("fp32" if weight_format == "fp32" else "bf16")
    head = head or _output_layer(model)
    by_role: dict[str, list[tuple[str, Tensor]]] = {role: [] for role in ROLES}
    for owned in _owned_parameters(model):
        by_role[_role(owned, head)].append((owned.name, owned.param))
    decay = {"weight_decay": weight_decay, "weight_decay_mult": weight_decay_mult}
    groups = []
    for role, params in by_role.items():
        still = role == "norm" or (role == "embedding" and not embedding_decay)
        options = {k: 0.0 if still else v for k, v in decay.items() if still or v is not None}
        fmt = weight_format if role == "projection" else other
        groups.append({"params": params, "role": role, "weight_format": fmt, **options})
    return [group for group in groups if group["params"]]


def listing(model: nn.Module, groups: Sequence[dict[str, Any]]) -> list[Row]:
    """What is stored how, a row per parameter in the order of the groups; for `weights.csv` or a log.

    `groups` as `parameter_groups` gave them, or the `param_groups` of an optimizer, whose own defaults count then.
    """
    owned = {o.param: o for o in _owned_parameters(model)}
    rows = []
    for group in groups:
        for item in group["params"]:
            o = owned[item[1] if isinstance(item, tuple) else item]
            dtype = str(o.param.dtype).removeprefix("torch.")
            fmt = getattr(group["weight_format"], "name", group["weight_format"])
            rows.append(Row(o.name, tuple(o.param.shape), group["role"], fmt, dtype, _decays(group), o.tied))
    return rows


def _decays(group: dict[str, Any]) -> bool:
    """Whether either decay is not zero; one that is not given is the optimizer's default, which is not."""
    missing = 0.0 if "rule" in group else None  # an optimizer's group has every decay that its rule takes
    return any(group.get(key, missing) != 0.0 for key in ("weight_decay", "weight_decay_mult"))
