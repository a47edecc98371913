"""Validation: perplexity = exp(total nll / total tokens) over a fixed set of tokens, at any batch size."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from mpadam.data import Batch
from mpadam.model.fp8.control import fp8_enabled
from mpadam.model.loss import token_nll
from mpadam.training.feed import to_tensors
from mpadam.training.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Validation:
    """loss: nats per token, tokens: how many were predicted."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf


@torch.no_grad()
def evaluate(
    model: LlamaForCausalLM,
    batches: Iterable[Batch],
    *,
    fp8: bool = False,
    compiled: bool = False,
    ranks: Ranks = ALONE,
) -> Validation:
    """Mean negative log-likelihood of all target tokens: each from float32 logits, summed in float64.

    batches: of this rank; the result is that of all ranks together.
    fp8: let FP8 layers compute in FP8, with the scales as they are; otherwise they compute in bf16.
    compiled: the loss, as in training (`compile_passes`).
    Raises ValueError if the batches hold no target token.
    """
    device = model.lm_head.weight.device
    total, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    model.eval()
    with fp8_enabled(model, fp8):
        for batch in batches:
            input_ids, labels = to_tensors(batch, device)
            total += token_nll(model, input_ids, labels, compiled=compiled).sum(dtype=torch.float64)
            tokens += batch.target_tokens
    model.train()
    (tokens,) = ranks.total(tokens)
    if tokens == 0:
        raise ValueError("the validation set has no target tokens: give data.validation_tokens above 0, and text")
    return Validation(loss=ranks.sum_(total).item() / tokens, tokens=tokens)
