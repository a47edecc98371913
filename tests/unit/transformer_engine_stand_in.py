"""Stand-in modules for Transformer Engine: they record calls and refuse what it would refuse.

They multiply in bf16, so values can be checked. Every call of a layer changes its scaling state, in evaluation too, and
the state exists from the first call in an autocast region on. They know only names and keywords of Transformer Engine
2.18 that this project uses; `test_fp8_transformer_engine_files.py` holds them against its own files.
"""

import pickle
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor, nn


@dataclass
class Record:
    """What the stand-ins saw."""

    recipes: list[dict] = field(default_factory=list)
    layers: list[tuple] = field(default_factory=list)
    regions: list[dict] = field(default_factory=list)
    calls: list[tuple] = field(default_factory=list)
    open_region: dict | None = None
    advances: int = 0


def stand_ins(record: Record) -> dict[str, ModuleType]:
    class DelayedScaling:
        known = frozenset({"margin", "fp8_format", "amax_history_len", "amax_compute_algo", "reduce_amax"})

        def __init__(self, **options: object) -> None:
            assert options.keys() <= self.known
            self.options = options
            record.recipes.append(options)

    class Linear(nn.Module):
        def __init__(self, in_features: int, out_features: int, *, bias: bool, params_dtype: torch.dtype,
                     device: torch.device) -> None:  # fmt: skip
            super().__init__()
            self.weight = nn.Parameter(torch.ones(out_features, in_features, dtype=params_dtype, device=device))
            self.sizes, self.fp8_meta = (out_features, in_features), {}
            record.layers.append((self.sizes, bias))

        def init_fp8_metadata(self, num_gemms: int = 1) -> None:
            assert record.open_region is not None, "the recipe is that of the autocast region"
            steps = record.open_region["recipe"].options["amax_history_len"]
            for key, tensors in (("scaling_fwd", 3 * num_gemms), ("scaling_bwd", 2 * num_gemms)):
                fresh = SimpleNamespace(scale=torch.ones(tensors), amax_history=torch.zeros(steps, tensors))
                self.fp8_meta.setdefault(key, fresh)

        def forward(self, x: Tensor) -> Tensor:
            assert record.open_region is not None, "outside an autocast region Transformer Engine computes in bf16"
            assert id(self) not in record.open_region["called"], "at most one call of a module in a region"
            assert self.weight.shape == self.sizes
            assert not any(size % 16 for size in (*x.shape, *self.weight.shape))
            record.open_region["called"].add(id(self))
            record.calls.append((tuple(x.shape), self.training))
            self.init_fp8_metadata()
            self.move("scaling_fwd", x)
            y = nn.functional.linear(x, self.weight)
            if y.requires_grad:
                y.register_hook(lambda dy: self.move("scaling_bwd", dy))
            return y

        @torch.no_grad()
        def move(self, direction: str, x: Tensor) -> None:
            self.fp8_meta[direction].scale += 1
            self.fp8_meta[direction].amax_history[0] += x.abs().max()

        def get_extra_state(self) -> Tensor:
            return torch.frombuffer(bytearray(pickle.dumps(self.fp8_meta)), dtype=torch.uint8)

        def set_extra_state(self, state: Tensor) -> None:
            raise RuntimeError(f"Refusing to load pickled Transformer Engine extra state for {type(self).__name__}.")

    names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.common",
             "transformer_engine.common.recipe")  # fmt: skip
    modules = {name: ModuleType(name) for name in names}
    vars(modules["transformer_engine.pytorch"]).update(Linear=Linear, autocast=autocast_class(record, DelayedScaling))
    vars(modules["transformer_engine.common.recipe"]).update(
        DelayedScaling=DelayedScaling, Format=SimpleNamespace(HYBRID="hybrid", E4M3="e4m3")
    )
    return modules


def autocast_class(record: Record, recipe_class: type) -> type:
    """The context manager that opens a region."""

    class autocast:  # noqa: N801 (its name there)
        def __init__(self, *, enabled: bool, recipe: object, amax_reduction_group: object) -> None:
            assert enabled
            assert isinstance(recipe, recipe_class)
            self.region = {"recipe": recipe, "group": amax_reduction_group, "called": set()}

        def __enter__(self) -> None:
            assert record.open_region is None
            record.open_region = self.region
            record.regions.append(self.region)

        def __exit__(self, *_: object) -> None:
            record.open_region = None
            if torch.is_grad_enabled():
                record.advances += 1

    return autocast
