"""float32 masters: nothing is rounded."""

from mpadam.numerics.card import FormatCard

FP32 = FormatCard("fp32", masters="fp32", home="mpadam.numerics.plain:Fp32", bits=32, codes=False, bandwidth=0.6)
