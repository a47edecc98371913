"""How matrix products of bf16 operands are computed on a CPU: by its bf16 instructions, or through float32.

| bf16_products | a product of bf16 matrices                                | where                              |
|---------------|-----------------------------------------------------------|------------------------------------|
| native        | torch's own                                               | CPUs with bf16 or AMX instructions |
| float32       | that of the operands in float32, rounded to bf16 once     | any CPU                            |

Both sum in float32, as tensor cores do, in different orders: their results agree up to bf16's rounding. Attention by
`scaled_dot_product_attention` is one product in this sense. A CPU without bf16 instructions multiplies bf16 matrices
element by element, some 15 times slower than float32. So `run.yaml` names the route, and training refuses `native`
where torch has no fast products. Runs on CUDA, and runs older than the field, name none: their products are torch's.

    with bf16_products("float32"):      # in this thread; the rest of the process is left alone
        loss, _ = loss_sum(model, ...)
    loss.backward()
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map_only

from mpadam.study.auto import Bf16Products

_NAMES = ("matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "inner", "einsum", "tensordot")
_IN_PLACE = frozenset(getattr(Tensor, f"{name}_") for name in _NAMES if hasattr(Tensor, f"{name}_"))
_PRODUCTS = _IN_PLACE | {
    *(getattr(owner, name) for owner in (torch, Tensor) for name in _NAMES if hasattr(owner, name)),
    *(functional.linear, functional.scaled_dot_product_attention, Tensor.__matmul__, Tensor.__rmatmul__),
}


def bf16_products(route: Bf16Products | None) -> AbstractContextManager[Any]:
    """Inside, products of bf16 matrices on a CPU take this route; None: torch's own.

    So do those that autograd derives from them. A backward pass written by hand is outside: autograd leaves the mode.
    """
    return _Float32Products() if route == "float32" else nullcontext()


class _Float32Products(TorchFunctionMode):
    """What torch calls for each of its functions in this thread, while it is entered."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in _PRODUCTS or not _all_bf16_on_cpu((args, kwargs)):
            return function(*args, **kwargs)
        target = kwargs.pop("out", args[0] if function in _IN_PLACE else None)
        args, kwargs = tree_map_only(Tensor, _widened, (args, kwargs))
        product = function(*args, **kwargs).to(torch.bfloat16)
        return product if target is None else target.copy_(product)


def _all_bf16_on_cpu(operands: Any) -> bool:
    """Other and mixed dtypes are torch's to compute or refuse; a mask of booleans is no operand."""
    tensors = [x for x in tree_iter(operands) if isinstance(x, Tensor) and x.dtype != torch.bool]
    return bool(tensors) and all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in tensors)


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x
