"""Which engine computes FP8 products: names, what `auto` and `native` mean, and when one cannot be had.

| backend            | products                        | where                                                     |
|--------------------|---------------------------------|-----------------------------------------------------------|
| transformer_engine | Transformer Engine's own layers | CUDA, compute capability 8.9 on, transformer-engine there |
| native             | torch's scaled matrix product   | CUDA, compute capability 8.9 on                           |
| emulated           | bf16 products of FP8 values     | anywhere                                                  |

A run's `run.yaml` names one of the three; training refuses to compute otherwise than it says. This module imports
neither torch nor Transformer Engine.
"""

import difflib

BACKENDS = ("transformer_engine", "native", "emulated")
FP8_CAPABILITY = (8, 9)
FIELD = "fp8_backend"


def resolve_backend(
    requested: str, *, device: str, capability: tuple[int, int] | None, transformer_engine: bool
) -> str:
    """The backend that a run's specification names.

    requested: `auto` or a backend. `auto` is the first of the table that there is; `native` on a CPU is `emulated`.
    device: "cpu" or "cuda", where the run will compute.
    capability: compute capability of its GPUs, None where no GPU is in sight (a cluster's login node).
    transformer_engine: whether it is installed where the run will compute.
    Raises ValueError where `auto` cannot be decided, or the device cannot have what is asked for.
    """
    if requested not in ("auto", *BACKENDS):
        near = difflib.get_close_matches(requested, ("auto", *BACKENDS), n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{FIELD} = {requested!r}: {hint}Give auto, {', '.join(BACKENDS)}")
    if device == "cpu":
        if requested == "transformer_engine":
            raise ValueError(
                f"{FIELD} = 'transformer_engine' with device = 'cpu': it needs a GPU; write {FIELD}: emulated"
            )
        return "emulated"
    if requested != "auto":
        return requested
    if capability is None:
        raise ValueError(
            f"{FIELD} = 'auto' with device = 'cuda', but no GPU is in sight here to decide by; write which one the "
            f"run's machine has, e.g.  {FIELD}: transformer_engine  (or native)"
        )
    if capability < FP8_CAPABILITY:
        return "emulated"
    return "transformer_engine" if transformer_engine else "native"


def check_backend(
    backend: str, *, device: str, capability: tuple[int, int] | None, transformer_engine: str | None
) -> None:
    """Raise ValueError, with the remedy, if this machine cannot compute with `backend`.

    capability: of this machine's GPU, None where there is none.
    transformer_engine: None if it can be imported, else why not.
    """
    if backend == "emulated":
        return
    if device == "cpu" or capability is None:
        raise ValueError(f"{FIELD} = {backend!r} needs a CUDA device and there is none; write {FIELD}: emulated")
    if capability < FP8_CAPABILITY:
        raise ValueError(
            f"{FIELD} = {backend!r} needs a GPU of compute capability 8.9 or higher (Ada, Hopper, Blackwell), this one "
            f"has {capability[0]}.{capability[1]}; use another GPU, or write {FIELD}: emulated  (same numbers, bf16 "
            "products)"
        )
    if backend == "transformer_engine" and transformer_engine is not None:
        raise ValueError(
            f"{FIELD} = 'transformer_engine', which cannot be imported here ({transformer_engine}); install it with  "
            f"pip install '.[gpu]'  in the clone, or write {FIELD}: native"
        )
