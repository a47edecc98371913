"""bfloat16: the parameter itself is the stored weight."""

from mpadam.numerics.card import FormatCard

BF16 = FormatCard("bf16", masters="bf16", home="mpadam.numerics.plain:Bf16", bits=16, codes=False, bandwidth=0.6)
