"""Elementwise work of forward and backward pass through torch.compile: few kernels where eager torch has many.

    loss           the arithmetic of a chunk of logits (`mpadam.model.loss`)
    FP8            a cast and the magnitude of what is cast (`mpadam.model.fp8.products`, backend `native`)
    layers         norms, the sum before the second of them, rotary embedding, gated activation (`compile_layers`)

Matrix products, attention and the layers that compute in FP8 stay outside: each piece lies between two of them, so it
is the same for every backend, and all layers of a model share its graphs.

What keeps a resumed run exact. Each shape has a graph of its own (`dynamic=False`): a graph for any length would depend
on the shapes that came before it, of which a resumed process has seen others. The order of sums is a function of the
shape and of the device: `deterministic` lets no measurement choose how a sum is cut; that of elementwise kernels, which
may be timed, changes no number. Casts to bf16 are carried out where eager code has them (`emulate_precision_casts`).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from mpadam.compiler import vector_bits
from mpadam.model.layers import rotate_with

OPTIONS = {"emulate_precision_casts": True, "deterministic": True}
#: Graphs of one piece at most: shapes of a model, with and without gradients. Beyond it torch raises an error.
_SHAPES = 64
F = TypeVar("F", bound=Callable[..., Any])


def compiled(piece: F, device_type: str) -> F:
    """`piece` compiled for tensors of this kind of device, once in a process."""
    return _compiled(piece, device_type)


@cache
def _compiled(piece: Callable[..., Any], device_type: str) -> Any:
    options = OPTIONS | ({"cpp.simdlen": vector_bits()} if device_type == "cpu" else {})  # see mpadam.optim.compiled
    return torch.compile(  # type: ignore[call-overload]  # torch 2.13's stubs lack the last two
        piece, fullgraph=True, dynamic=False, options=options, isolate_recompiles=True, recompile_limit=_SHAPES
    )


# --- layers ----------------------------------------------------------------------------------------------------------


def compile_layers(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Let `model` compute the elementwise work of its layers with compiled pieces, in place; returns `model`.

    model: on its device, and in FP8 already where it computes in FP8. Its modules, parameters and names stay.
    """
    kind = model.lm_head.weight.device.type
    for layer in model.model.layers:
        layer.forward = partial(_layer, layer)
        layer.mlp.forward = partial(_mlp, layer.mlp)
    model.model.norm.forward = partial(_normalized, model.model.norm)
    rotate_with(compiled(rotary, kind), model)
    return model


def _layer(layer: Any, hidden_states: Tensor, **attention: Any) -> Tensor:
    normalized = _normalized(layer.input_layernorm, hidden_states)
    attended, _ = layer.self_attn(hidden_states=normalized, **attention)
    second = layer.post_attention_layernorm
    add = compiled(add_norm, hidden_states.device.type)
    hidden_states, normalized = add(hidden_states, attended, second.weight, second.variance_epsilon)
    return hidden_states + layer.mlp(normalized)


def _normalized(module: Any, x: Tensor) -> Tensor:
    return compiled(norm, x.device.type)(x, module.weight, module.variance_epsilon)


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    return mlp.down_proj(compiled(gated, x.device.type)(mlp.gate_proj(x), mlp.up_proj(x)))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm with float32 statistics."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, norm(total, weight, eps)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of query and key (batch, heads, positions, width), by cos and sin (1, positions, width)."""
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + _turned(q) * sin, k * cos + _turned(k) * sin


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
