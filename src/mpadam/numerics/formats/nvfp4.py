"""NVFP4 with NVIDIA's tensor scale (amax), or with a sticky power of two in its place."""

from dataclasses import replace

from mpadam.numerics.card import FormatCard

AMAX = FormatCard(
    "nvfp4",
    masters="nvfp4",
    home="mpadam.numerics.nvfp4:NvFp4",
    arguments={"tensor_scale": "amax"},
    bits=4,
    block=16,
    scale_bits=8,
)
STICKY = replace(AMAX, name="nvfp4_sticky", masters="nvfp4s", arguments={"tensor_scale": "pow2_sticky"}, bandwidth=0.25)
