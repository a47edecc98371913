"""Compiles kernels for an H100 (sm_90) with Triton and its own assembler, and counts what matters in them.

    python -m tests.lowering.assembled FOLDER CASE...     FOLDER: of `interpreted`; writes FOLDER/CASE.assembled.json

The first configuration that inductor would try on the GPU is compiled, with the options it would use.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from pretended import pretend_h100
from torch._inductor import config
from torch._inductor.async_compile import _load_triton_kernel_from_source
from triton import knobs

#: what is counted -> how PTX says it
COUNTED = {
    "roots": r"\bsqrt\.rn\.",
    "approximate roots": r"\bsqrt\.approx",
    "approximate divisions": r"\bdiv\.(?:full|approx)",
    "fused": r"\bfma\.",
}


def compile_kernel(name: str, source: str) -> dict[str, int]:
    """Counts of COUNTED, of every number that a thread works on; bytes of registers that are kept in memory; sums in
    the source, and configurations among which a GPU would choose by timing."""
    tuner = _load_triton_kernel_from_source(name, source)
    with redirect_stdout(StringIO()) as said:
        binary = tuner._precompile_config(tuner.configs[0]).kernel
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill", said.getvalue())]
    assert len(spilled) == 2, f"ptxas does not say what it spills:\n{said.getvalue()}"  # stores and loads
    ptx = binary.asm["ptx"]
    assert ".target sm_90" in ptx
    assert binary.asm["cubin"]
    counts = {"spills": sum(spilled), "sums": source.count("tl.sum("), "configurations": len(tuner.configs)}
    return counts | {key: len(re.findall(pattern, ptx)) for key, pattern in COUNTED.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    pretend_h100()
    config.use_static_cuda_launcher = False  # one keeps no PTX
    knobs.compilation.always_compile = True  # what comes out of a cache says nothing of spills
    knobs.nvidia.dump_ptxas_log = True
    for case in sys.argv[2:]:
        sources = sorted((folder / case).glob("*.py"))
        kernels = {path.stem: compile_kernel(path.stem, path.read_text()) for path in sources}
        (folder / f"{case}.assembled.json").write_text(json.dumps(kernels))
