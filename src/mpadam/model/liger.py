"""Liger's fused kernels for norms, rotary embedding and MLP: `training.liger: true`.

Each norm and MLP of the model gets Liger's forward pass; its modules, parameters and names stay as they are, and so do
the layers inside an MLP, which may compute in FP8. Liger's cross entropies are off: `mpadam.model.loss` is the loss.

Liger also puts names of its own into Transformers' module of the LLaMA, which is the whole process's. They are taken
out again at once; the rotary embedding is Liger's while a model of this kind is in its forward pass.
"""

from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from mpadam.model.rotary import rotate_with


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
