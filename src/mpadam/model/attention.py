"""Causal attention over whole rows: each row of a batch is one sequence that begins at position 0.

Transformers cannot know that. It searches the positions for sequences packed into a row, once in each forward pass
for the mask, and with FlashAttention once in each layer if the batch has one row; each search makes the host wait for
the GPU. Nothing else of Transformers' attention depends on it, so the results are the same bits without.
"""

from copy import copy
from typing import Any

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaForCausalLM

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
