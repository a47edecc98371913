"""The precision regime of a run: what its weights are stored in, and the model that computes in its precision."""

import csv
import io
from typing import Any

from transformers.models.llama.modeling_llama import LlamaForCausalLM

from mpadam.model.build import COMPUTE_DTYPES, build_model
from mpadam.model.compiled import compile_layers
from mpadam.model.fp8.control import compile_casts, fp8_state_dict, load_fp8_state_dict
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.model.fp8.scaling import Fp8Recipe
from mpadam.model.layers import apply_liger, fill_up_mlps
from mpadam.numerics.base import Format
from mpadam.numerics.formats import card_of
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.groups import Row, listing
from mpadam.study.run_config import RegimeConfig
from mpadam.study.spec import RunSpec
from mpadam.training.ranks import ALONE, Ranks


def weight_format(regime: RegimeConfig) -> str | Format:
    """What the projections are stored in: a name, or a format as the regime's own fields want it."""
    card = card_of(regime.masters)
    return card.build(**{key: getattr(regime, key) for key in card.options}) if card.options else card.name


def compute_model(spec: RunSpec, ranks: Ranks = ALONE) -> LlamaForCausalLM:
    """The model of a run at its initial weights, its projections in FP8 where the regime computes in it,
    its elementwise work Liger's or compiled where `run.yaml` says so.

    ranks: those that train it; they share FP8's scales.
    """
    model = build_model(
        spec.model, seed=spec.seed, dtype=COMPUTE_DTYPES[spec.regime.compute], device=spec.training.device
    )
    if spec.regime.compute == "fp8":
        assert spec.training.fp8_backend is not None
        convert_to_fp8(
            model,
            backend=spec.training.fp8_backend,
            recipe=Fp8Recipe(amax_history=spec.regime.amax_history, margin=spec.regime.margin),
            group=ranks.group,
            products=spec.training.bf16_products,
        )
    elif spec.training.device != "cpu":
        fill_up_mlps(model)
    if spec.training.compile_passes:
        compile_casts(model)
    if spec.model.liger:
        return apply_liger(model)
    return compile_layers(model) if spec.training.compile_passes else model


def model_state(model: LlamaForCausalLM) -> dict[str, Any]:
    """What a checkpoint keeps of the model: its parameters, and the scaling state of FP8 compute."""
    return {"model": model.state_dict(), "fp8": fp8_state_dict(model)}


def load_model_state(model: LlamaForCausalLM, state: dict[str, Any]) -> None:
    """Restore what `model_state` kept, bit for bit."""
    model.load_state_dict(state["model"])
    load_fp8_state_dict(model, state["fp8"])


def weights_csv(model: LlamaForCausalLM, optimizer: LowPrecisionOptimizer) -> str:
    """How each parameter is stored, a line each, as `mpadam.optim.groups.Row` names its columns."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, Row._fields, lineterminator="\n")
    writer.writeheader()
    for row in listing(model, optimizer.param_groups):
        shape, tied = "x".join(map(str, row.shape)), " ".join(row.tied)
        writer.writerow(row._replace(weight_format=str(row.weight_format))._asdict() | {"shape": shape, "tied": tied})
    return lines.getvalue()
