"""How the layers of Transformers' LLaMA are made to compute otherwise, in place; modules, parameters and names stay.

Attention over whole rows: each row of a batch is one sequence that begins at position 0. Transformers cannot know that.
It searches the positions for sequences packed into a row, once in each forward pass for the mask, and with
FlashAttention once in each layer if the batch has one row; each search makes the host wait for the GPU. Nothing else of
Transformers' attention depends on it, so the results are the same bits without.

Rotary embedding: Transformers looks the function up in its module, at each call. That module is the whole process's.
Another function is there while the model is in its forward pass, and no longer, so other models of the process stay
what they are.

Liger's fused kernels for norms, rotary embedding and MLP (`training.liger: true`): each norm and MLP of the model gets
Liger's forward pass, and the layers inside an MLP may compute in FP8. Liger's cross entropies are off:
`mpadam.model.loss` is the loss. Liger also puts names of its own into Transformers' module, which are taken out again
at once.

MLPs of any width at a GPU's speed: its bf16 products are slow where a size is no multiple of 16 (1b has 5461). Gate and
up projection compute a few columns of zeros more, silu(0) * 0 stays zero, and the down projection takes them. Weights
keep their shapes, and are filled up in each call; what is computed of them is the same sum with more zeros.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaForCausalLM

# --- causal attention over whole rows ---------------------------------------------------------------------------------


_NO_MASK = "causal"  # to Transformers, a kind of attention for which it makes no mask


def attend_to_whole_rows(model: LlamaForCausalLM) -> None:
    """Leave out Transformers' search for packed sequences, in place.

    `eager` attention gets its mask from here. The others need none: they are told that they are causal.
    """
    base: Any = model.model
    if model.config._attn_implementation == "eager":
        base.register_forward_pre_hook(_with_mask, with_kwargs=True)
        return
    base.config = copy(base.config)  # the layers keep the model's
    base.config._attn_implementation = _NO_MASK
    if model.config._attn_implementation == "flash_attention_2":
        for layer in base.layers:
            layer.self_attn.register_forward_pre_hook(_without_positions, with_kwargs=True)


def _with_mask(base: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The mask that eager attention adds: 0 up to a position, the lowest number after it."""
    length, weight = kwargs["input_ids"].shape[1], next(base.parameters())
    lowest = torch.finfo(weight.dtype).min
    mask = torch.full((1, 1, length, length), lowest, dtype=weight.dtype, device=weight.device).triu_(1)
    return args, kwargs | {"attention_mask": mask}


def _without_positions(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A layer's rotary embedding is made; only the search would look at the positions."""
    return args, kwargs | {"position_ids": None}


# --- rotary embedding -------------------------------------------------------------------------------------------------


def rotate_with(rotary: Callable[..., Any], model: LlamaForCausalLM) -> None:
    """Let Transformers find `rotary` during each forward pass of `model`, and its own at other times."""
    names = vars(modeling_llama)
    own = names["apply_rotary_pos_emb"]
    model.model.register_forward_pre_hook(lambda *_: names.update(apply_rotary_pos_emb=rotary))
    model.model.register_forward_hook(lambda *_: names.update(apply_rotary_pos_emb=own), always_call=True)


# --- Liger's kernels --------------------------------------------------------------------------------------------------


def apply_liger(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Let `model` compute with Liger's kernels, in place; returns `model`.

    model: on the GPU, and in FP8 already where it computes in FP8.
    """
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    names = vars(modeling_llama)
    before = names.copy()
    try:
        apply_liger_kernel_to_llama(
            rope=True, cross_entropy=False, fused_linear_cross_entropy=False, rms_norm=True, swiglu=True, model=model
        )
        rotary = names["apply_rotary_pos_emb"]
    finally:
        names.update(before)
    rotate_with(rotary, model)
    return model


# --- MLPs of any width ------------------------------------------------------------------------------------------------


ALIGNMENT = 16


def fill_up_mlps(model: LlamaForCausalLM) -> None:
    """Let the products of MLPs have sizes that are multiples of 16, in place; nothing changes where they do already."""
    missing = -model.config.intermediate_size % ALIGNMENT
    if not missing:
        return
    for layer in model.model.layers:
        for linear, zeros in (
            (layer.mlp.gate_proj, (0, 0, 0, missing)),
            (layer.mlp.up_proj, (0, 0, 0, missing)),
            (layer.mlp.down_proj, (0, missing)),
        ):
            linear.forward = partial(_filled_up, linear, zeros)


def _filled_up(linear: nn.Linear, zeros: tuple[int, ...], x: Tensor) -> Tensor:
    return functional.linear(x, functional.pad(linear.weight, zeros))
