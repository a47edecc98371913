"""FP8 in blocks: e5m2 (the reference command) and e4m3."""

from dataclasses import replace

from mpadam.numerics.card import FormatCard

E5M2 = FormatCard(
    "fp8_e5m2",
    masters="fp8",
    home="mpadam.numerics.fp8:Fp8Blocks",
    arguments={"fmt": "e5m2"},
    options=("block_size", "block_rows", "power_of_two_scale"),
    bits=8,
    block=256,
    scale_bits=8,
    bandwidth=0.3,
)
E4M3 = replace(E5M2, name="fp8_e4m3", masters="fp8e4m3", arguments={"fmt": "e4m3"})
