"""Optimizer steps that are lowered for a GPU: each storage format and write-back, on matrices like the paper's models.

512 numbers fill rows of blocks. 1376, an intermediate size of the 60m model, leave a short block of FP8, and 5461, the
1b model's, one of NVFP4 as well. There are fewer rows than in the models, so that interpreting a step takes seconds.
"""

from __future__ import annotations

from typing import NamedTuple

WHOLE, SHORT, ODD = (256, 512), (256, 1376), (64, 5461)


class Case(NamedTuple):
    weight_format: str
    write_back: str
    shape: tuple[int, int]


CASES = {
    f"{case.weight_format}-{case.write_back}-{case.shape[1]}": case
    for case in (
        Case("bf16", "nearest", WHOLE),
        Case("bf16", "stochastic", WHOLE),
        Case("bf16", "kahan", WHOLE),
        Case("fp32", "nearest", WHOLE),
        Case("fp8_e5m2", "nearest", WHOLE),
        Case("fp8_e5m2", "nearest", SHORT),
        Case("fp8_e5m2", "stochastic", SHORT),
        Case("fp8_e4m3", "stochastic", WHOLE),
        Case("fp8_e4m3", "nearest", ODD),
        Case("fp8_e5m2", "kahan", WHOLE),
        Case("nvfp4_sticky", "nearest", WHOLE),
        Case("nvfp4_sticky", "stochastic", WHOLE),
        Case("nvfp4_sticky", "nearest", ODD),
        Case("nvfp4_sticky", "kahan", WHOLE),
        Case("nvfp4", "nearest", WHOLE),
        Case("nvfp4", "nearest", ODD),
        Case("nvfp4", "stochastic", WHOLE),
    )
}
