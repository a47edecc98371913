"""Scenes, capabilities and the survival grid: step sizes and lost updates against plain arithmetic and ml_dtypes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import torch
from exhibits_made import from_folder
from scipy.stats import norm

from mpadam.diagnostics.capabilities import Capability, Edges, find_edges, measure
from mpadam.diagnostics.capabilities import produce as produce_capabilities
from mpadam.diagnostics.records import tidy_capabilities
from mpadam.diagnostics.scene import reference_step, scene, typical
from mpadam.diagnostics.survival_grid import PARTS, Survival
from mpadam.diagnostics.survival_grid import measure as measure_survival
from mpadam.diagnostics.survival_grid import produce as produce_survival
from mpadam.exhibits import figure1
from mpadam.numerics.formats import CARDS, get_format
from mpadam.study.diagnostics import Capabilities, SurvivalGrid

OPTIONS = Capabilities(limit=60)
FORMS = {
    "m-plus-adam": lambda w, o: min(0.75 * w, o.lr_mult),
    "m-plus-adam-rho-tensor": lambda w, o: min(0.75, o.lr_mult / o.deviation) * w,
    "m-plus-adam-relative": lambda w, o: o.lr_mult * w,
    "m-plus-adam-unnormalized": lambda w, o: o.lr_mult * math.log(2) * o.gradient * w,
}


# --- scenes ----------------------------------------------------------------------------------------------------------


def test_a_typical_block_has_the_quantiles_of_the_normal_distribution():
    block = typical(16, 0.02).double().numpy()
    assert np.all(np.diff(np.abs(block)) < 0)
    assert np.abs(block)[0] == pytest.approx(0.02 * norm.ppf(1 - 0.5 / 32), rel=1e-6)
    assert np.sqrt(np.mean(typical(256, 0.02).double().numpy() ** 2)) == pytest.approx(0.02, rel=0.01)
    assert abs(block.mean()) < 0.003


@pytest.mark.parametrize("fmt", CARDS)
def test_a_scene_holds_its_probes_in_blocks_of_their_own(fmt):
    values = torch.tensor([0.0, 0.01, -0.03])
    placed = scene(values, get_format(fmt), deviation=0.02, copies=5)
    width = get_format(fmt).block[1]
    assert torch.equal(placed.at_probes(placed.weights), values[:, None].expand(3, 5))
    assert placed.places.unique().numel() == 15
    owners = placed.places // width
    assert all(not set(owners[a].tolist()) & set(owners[b].tolist()) for a, b in ((0, 1), (0, 2), (1, 2)))
    spread = placed.spread(torch.tensor([1.0, 2.0, 3.0]))
    assert spread.sum() == 5 * 6
    assert torch.equal(placed.at_probes(spread), torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 5))


def test_a_scene_can_have_the_size_of_a_typical_tensor():
    placed = scene(torch.tensor([0.0, 0.5]), get_format("fp8_e5m2"), deviation=0.02, typical_rms=True)
    assert placed.weights.double().square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_the_step_of_each_form_is_what_its_equation_says(name):
    weights = torch.tensor([1e-5, -3e-4, 0.02, -0.3, 3.0])
    step = reference_step(name, weights, OPTIONS.gradient * weights.sign(), OPTIONS)
    sizes = [FORMS[name](abs(w), OPTIONS) for w in weights.tolist()]
    # towards zero, since the gradient has the sign of the weight
    assert (-step.multiplicative * weights.sign()).tolist() == pytest.approx(sizes, rel=1e-4)
    assert (-step.additive * weights.sign()).tolist() == pytest.approx([OPTIONS.lr] * 5, rel=1e-5)
    assert not step.decay.any()


# --- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (lambda w: w >= 0.37, (None, 0.37)),
        (lambda w: (w < 0.02) | (w > 0.9), (0.02, 0.9)),
        (lambda w: w < 0.02, (0.02, None)),
        (lambda w: w < 0, (None, None)),
    ],
)
def test_edges_are_found_where_they_are(lost, expected):
    edges = find_edges(lambda w: ~lost(w), 1e-3, 4.0)
    assert not edges.everywhere
    assert edges.gaps == 0
    for found, true in zip((edges.below, edges.above), expected, strict=True):
        assert found == (true if true is None else pytest.approx(true, rel=1e-3))


def test_edges_of_nothing_and_of_gaps():
    assert find_edges(lambda w: w < 0, 1e-3, 4.0).everywhere
    gaps = find_edges(lambda w: (w < 0.01) | (w > 0.1), 1e-3, 4.0)
    assert (gaps.below, gaps.above) == (None, None)
    assert gaps.gaps == pytest.approx(math.log(10) / math.log(4000), abs=0.03)


# --- capabilities ----------------------------------------------------------------------------------------------------


def first_lost_bf16(step: float) -> float:
    """The smallest bf16 value above 2^-20 that a step upwards does not change, and all above it, by ml_dtypes."""
    values = np.arange(0x3580, 0x4080, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    changes = (values + step).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64) != values
    last = int(np.flatnonzero(changes)[-1])
    return float(values[last + 1])


@pytest.mark.parametrize(("optimizer", "step"), [("adamw", 1e-3), ("m-plus-adam", 4.08e-3), ("additive-twin", 4.08e-3)])
def test_bf16_loses_updates_from_where_ml_dtypes_says(optimizer, step):
    found = measure("bf16", optimizer, "nearest", OPTIONS).edges
    value = first_lost_bf16(step)
    # what is rounded up to the first lost value is lost too
    assert value * (1 - 2**-8) <= found.above <= value
    assert found.below is None
    assert found.gaps == 0


def test_the_default_form_is_lost_like_the_additive_twin_and_the_relative_form_is_not():
    default, twin, relative = (
        measure("bf16", name, "nearest", OPTIONS).edges
        for name in ("m-plus-adam", "additive-twin", "m-plus-adam-relative")
    )
    assert default == twin
    assert relative == Edges()


@pytest.mark.parametrize("write_back", ["nearest", "stochastic", "kahan"])
@pytest.mark.parametrize("fmt", ["bf16", "fp8_e5m2", "nvfp4"])
def test_madam_neither_leaves_zero_nor_turns_a_sign_however_it_is_rounded(fmt, write_back):
    found = measure(fmt, "madam", write_back, replace(OPTIONS, limit=30, copies=8))
    assert (found.zero, found.sign) == (None, None)


def test_adamw_leaves_zero_at_once_and_turns_a_sign_in_as_many_steps_as_it_takes():
    found = measure("bf16", "adamw", "kahan", OPTIONS)
    assert found.zero == 1
    assert found.sign == pytest.approx(OPTIONS.weight / OPTIONS.lr_adamw, abs=1)
    assert found.small == pytest.approx((OPTIONS.weight / 2 - OPTIONS.small) / OPTIONS.lr_adamw, abs=1)


def test_nvfp4_loses_every_update_to_nearest_rounding_and_not_to_the_others():
    nearest, stochastic, kahan = (
        measure("nvfp4", "adamw", write_back, OPTIONS) for write_back in ("nearest", "stochastic", "kahan")
    )
    assert nearest.edges.everywhere
    assert (nearest.zero, nearest.sign, nearest.small) == (None, None, None)
    for other in (stochastic, kahan):
        assert not other.edges.everywhere
        assert None not in (other.zero, other.sign, other.small)


@pytest.mark.parametrize("write_back", ["eco", "eco_stochastic"])
def test_eco_moves_weights_that_nearest_leaves(write_back):
    """Half an ulp is collected in the first moment at (1 - beta1) of each lost step."""
    options = replace(OPTIONS, updates=60)
    nearest, eco = (measure("bf16", "adamw", one, options) for one in ("nearest", write_back))
    assert eco.edges.above is None or eco.edges.above > 4 * nearest.edges.above
    assert None not in (eco.zero, eco.sign, eco.small)


def test_what_is_not_defined_is_not_measured(tmp_path):
    options = replace(
        OPTIONS, formats=("bf16",), optimizers=("adamw", "madam"), write_backs=("nearest", "eco"), limit=2, updates=2
    )
    produce_capabilities(options, tmp_path)
    rows = pd.read_csv(tmp_path / "diagnostics" / "capabilities" / "capabilities.csv")
    measured = list(zip(rows.optimizer, rows.write_back, strict=True))
    assert measured == [("adamw", "nearest"), ("adamw", "eco"), ("madam", "nearest")]
    assert "eco_stochastic: what rounding lost" in from_folder("table1_write_backs", tmp_path).caption


def test_tables_say_what_was_measured_and_nothing_else(tmp_path):
    options = replace(OPTIONS, formats=("bf16",), optimizers=("adamw", "madam"), write_backs=("nearest", "kahan"))
    found = [
        Capability("bf16", "adamw", "nearest", 1, 21, 10, Edges(above=0.4987)),
        Capability("bf16", "adamw", "kahan", 1, 20, 9, Edges()),
        Capability("bf16", "madam", "nearest", None, None, 44, Edges(everywhere=True)),
        Capability("bf16", "madam", "kahan", None, None, None, Edges(below=1e-5, above=2.0, gaps=0.25)),
    ]
    kept = {"options": asdict(options), "capabilities": [asdict(one) for one in found]}
    (tmp_path / "diagnostics" / "capabilities").mkdir(parents=True)
    (tmp_path / "diagnostics" / "capabilities" / "results.json").write_text(json.dumps(kept))
    first, every = (from_folder(name, tmp_path) for name in ("table1", "table1_write_backs"))
    assert every.data.equals(tidy_capabilities(kept["capabilities"]))
    assert [[entry.text for entry in row] for row in first.rows] == [
        ["bf16", "AdamW", "1", "21", "10", "none", "0.499", "none"],
        ["bf16", "Madam", "> 60", "> 60", "44", "all", "all", ""],
    ]
    assert [entry.text for entry in every.rows[3]][3:] == ["> 60", "> 60", "> 60", "1e-5", "2", "25%"]
    assert every.data.updates_to_leave_zero.tolist() == [1, 1, pd.NA, pd.NA]


def test_capabilities_are_written(tmp_path):
    options = replace(OPTIONS, formats=("bf16",), optimizers=("adamw",), limit=25, copies=4, updates=8)
    produce_capabilities(options, tmp_path)
    rows = pd.read_csv(tmp_path / "diagnostics" / "capabilities" / "capabilities.csv")
    assert rows.write_back.tolist() == ["nearest", "stochastic", "kahan"]
    results = json.loads((tmp_path / "diagnostics" / "capabilities" / "results.json").read_text())
    assert len(results["capabilities"]) == 3
    assert len(from_folder("table1", tmp_path).data) == 1


# --- survival grid ---------------------------------------------------------------------------------------------------

GRID = SurvivalGrid(bins=48, per_bin=16)


@pytest.fixture(scope="module")
def survivals() -> dict[str, Survival]:
    return {fmt: measure_survival(fmt, GRID) for fmt in GRID.formats}


def part(survival: Survival, optimizer: str, branch: str) -> torch.Tensor:
    return next(
        s for p, s in zip(PARTS, survival.shares, strict=True) if (p.optimizer, p.branch) == (optimizer, branch)
    )


def test_bf16_survival_is_that_of_ml_dtypes(survivals):
    found = survivals["bf16"]
    for name, branch, step in (("adamw", "delta", 1e-3), ("m-plus-adam", "multiplicative", 4e-3)):
        edge = first_lost_bf16(step)
        shares = part(found, name, branch)
        assert (shares[found.magnitudes < edge / 1.3] == 1).all()
        assert (shares[found.magnitudes > edge * 1.5] == 0).all()  # towards zero the spacing may be half
    assert (part(found, "m-plus-adam-relative", "multiplicative") == 1).all()
    assert (part(found, "m-plus-adam-unnormalized", "multiplicative") == 0).all()


def test_the_least_step_that_survives_is_half_a_spacing(survivals):
    found = survivals["bf16"]
    low, high = found.least / found.magnitudes
    # half a spacing is 2^-9 to 2^-8 of |w|; below a power of two, half of that; a bin is a third of a binade wide
    assert (low > 0.8 * 2.0**-10).all()
    assert (high < 1.3 * 2.0**-8).all()


@pytest.mark.parametrize("fmt", GRID.formats)
def test_the_default_branch_is_lost_at_large_weights_in_every_format_and_with_it_m_plus_adam(survivals, fmt):
    found = survivals[fmt]
    large = found.magnitudes > 2.2
    for branch in ("multiplicative", "delta"):
        assert (part(found, "m-plus-adam", branch)[large] == 0).all()
    assert torch.equal(part(found, "m-plus-adam", "delta"), part(found, "additive-twin", "delta"))


def test_small_weights_are_stored_as_zero_in_nvfp4_only(survivals):
    assert all(not survivals[fmt].zeros.any() for fmt in GRID.formats if fmt != "nvfp4")
    zeros = survivals["nvfp4"].zeros
    assert zeros[0] == 1
    assert zeros[-1] == 0
    stored_as_zero = zeros == 1
    assert (part(survivals["nvfp4"], "m-plus-adam", "multiplicative")[stored_as_zero] == 0).all()


def test_survival_is_written(tmp_path):
    produce_survival(replace(GRID, formats=("bf16", "nvfp4"), bins=4, per_bin=4), tmp_path)
    rows = pd.read_csv(tmp_path / "diagnostics" / "survival-grid" / "survival.csv")
    assert len(rows) == 2 * 4 * len(PARTS)
    assert rows.notna().all().all()
    axes = from_folder("figure1", tmp_path).figure.axes
    assert len(axes) == 2 * 2, "a column per format"
    assert len(axes[2].get_yticklabels()) == len(PARTS) == len(figure1.PARTS)
    assert {(p.optimizer, "both" if p.branch == "delta" else p.branch) for p in PARTS} == set(figure1.PARTS)
    assert all(a.get_xscale() == "log" for a in axes)
