"""Another function for the rotary embedding of one model: Transformers looks it up in its module, at each call.

That module is the whole process's. The function is there while the model is in its forward pass, and no longer, so
other models of the process stay what they are.
"""

from collections.abc import Callable
from typing import Any

from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaForCausalLM


def rotate_with(rotary: Callable[..., Any], model: LlamaForCausalLM) -> None:
    """Let Transformers find `rotary` during each forward pass of `model`, and its own at other times."""
    names = vars(modeling_llama)
    own = names["apply_rotary_pos_emb"]
    model.model.register_forward_pre_hook(lambda *_: names.update(apply_rotary_pos_emb=rotary))
    model.model.register_forward_hook(lambda *_: names.update(apply_rotary_pos_emb=own), always_call=True)
