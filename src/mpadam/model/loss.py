"""Negative log-likelihood of next tokens, from float32 logits, without keeping the logits.

With a vocabulary of 32,000 the logits of one forward pass are larger than everything else together. Head and cross
entropy are therefore computed together, a chunk of positions at a time, and the gradient of the chunk at once: the
softmax is at hand then, so this is also less work than to differentiate in a second pass.

    logits = float32(h W^T);  nll_i = logsumexp(logits_i) - logits_i[target_i]
    d nll_i / d logits_i = softmax(logits_i) - onehot(target_i)

`compiled` puts the arithmetic of a chunk, all but the products, through torch.compile (`mpadam.model.compiled`): on a
GPU two kernels instead of some fifteen.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from mpadam.model.compiled import compiled as through_compile

IGNORED = -100
CHUNK_BYTES = 2**28  # of float32 logits alive at a time; a constant, since it decides the order of sums


def loss_sum(
    model: LlamaForCausalLM, input_ids: Tensor, labels: Tensor, *, scale: float, compiled: bool = False
) -> tuple[Tensor, Tensor]:
    """Differentiable training loss of a micro-batch, and the sum it comes from.

    input_ids, labels: (B, L); position i predicts label i + 1, and labels of -100 do not count.
    scale: 1 / target tokens of the whole global batch.
    Returns (sum of nll * scale, float32 with gradient; sum of nll, float64).
    """
    hidden, targets = _shifted(model, input_ids, labels)
    return _HeadLoss.apply(hidden, model.lm_head.weight, targets, (scale, compiled))


@torch.no_grad()
def token_nll(model: LlamaForCausalLM, input_ids: Tensor, labels: Tensor, *, compiled: bool = False) -> Tensor:
    """Negative log-likelihood of every position that has a next one, (B * (L - 1),) float32; 0 where ignored."""
    hidden, targets = _shifted(model, input_ids, labels)
    weight = model.lm_head.weight
    nll = through_compile(chunk_nll, weight.device.type) if compiled else chunk_nll
    return torch.cat([nll(hidden[c] @ weight.T, targets[c]) for c in _chunks(hidden, weight)])


def _shifted(model: LlamaForCausalLM, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states (N, H) of the positions that have a next one, and the tokens that follow (N,)."""
    hidden = model.model(input_ids=input_ids, use_cache=False).last_hidden_state
    return hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    rows = max(1, CHUNK_BYTES // (4 * weight.shape[0]))
    return [slice(start, start + rows) for start in range(0, hidden.shape[0], rows)]


def chunk_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of each target, 0 where it is ignored."""
    return _nll(logits, targets)[0]


def chunk_loss(logits: Tensor, targets: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """Sum of nll in float64, and the gradient of `scale` times it in the dtype of the logits.

    scale: a number, or a 0-d float32 tensor: as a number it would be part of the compiled code.
    """
    nll, softmax, counted = _nll(logits, targets)
    total = nll.sum(dtype=torch.float64)
    gradient = _without_target_(softmax, targets.where(counted, 0)[:, None])
    gradient *= (counted * scale)[:, None]
    return total, gradient.to(logits.dtype)


def _nll(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """nll, with 0 where ignored; softmax; and which positions count."""
    values = logits.float()
    counted = targets != IGNORED
    index = targets.where(counted, 0)[:, None]
    values -= values.amax(dim=1, keepdim=True)
    at_target = values.gather(1, index)[:, 0]
    softmax = values.exp_()
    total = softmax.sum(dim=1)
    nll = (total.log() - at_target).where(counted, 0.0)
    return nll, softmax.div_(total[:, None]), counted


def _without_target_(softmax: Tensor, index: Tensor) -> Tensor:
    """`softmax - onehot(index)`."""
    if torch.compiler.is_compiling():  # an indexed write would be a kernel of its own between two others
        place = torch.arange(softmax.shape[1], device=softmax.device)
        return torch.where(place == index, softmax - 1.0, softmax)
    # One place in each row, so nothing to sort: torch would, in its deterministic mode, for a tensor of -1s.
    return softmax.scatter_(1, index, -1.0, reduce="add")


class _HeadLoss(torch.autograd.Function):
    """(hidden (N, H), weight (V, H), targets (N,), (scale, compiled)) -> (sum of nll * scale, sum of nll, float64)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: tuple[float, bool]
    ) -> tuple[Tensor, Tensor]:
        scale, compiled = options
        loss = through_compile(chunk_loss, weight.device.type) if compiled else chunk_loss
        factor = torch.tensor(scale) if compiled else scale
        chunks = _chunks(hidden, weight)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if len(chunks) > 1 else None
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        for chunk in chunks:
            chunk_total, gradient = loss(hidden[chunk] @ weight.T, targets[chunk], factor)
            total += chunk_total
            torch.mm(gradient, weight, out=grad_hidden[chunk])
            product = gradient.T @ hidden[chunk]
            grad_weight = product if grad_weight is None else grad_weight.add_(product)
        assert grad_weight is not None
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(total)
        return (total * scale).float(), total

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _grad_total: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None
