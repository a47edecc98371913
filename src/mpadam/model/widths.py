"""MLPs of any width at a GPU's speed: its bf16 products are slow where a size is no multiple of 16 (1b has 5461).

Gate and up projection compute a few columns of zeros more, silu(0) * 0 stays zero, and the down projection takes them.
Weights keep their shapes, and are filled up in each call; what is computed of them is the same sum with more zeros.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaForCausalLM

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
