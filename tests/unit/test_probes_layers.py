"""Probes of layers: survival by layer and sizes of steps, against arithmetic of their own and numbers by hand."""

import json

import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import torch
from analysis_fakes import fake_study
from torch import nn
from training_runs import assert_same_run, make_data, make_run, train

from mpadam import AdamW, MPlusAdam
from mpadam.analysis.collect import collect
from mpadam.analysis.probes import read_probes
from mpadam.exhibits.layers import layer_shares
from mpadam.exhibits.registry import exhibits
from mpadam.exhibits.sizes import sizes
from mpadam.exhibits.source import source_of
from mpadam.exhibits.updates import make as updates_table
from mpadam.probes.layers import layer_of, survey_layers, to_neighbours
from mpadam.probes.survey import survey
from mpadam.study.grid import run_keys
from mpadam.study.spec import read_run_file, write_run_file

NAMES = ("layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.1.mlp.up_proj", "lm_head")


def model_of(scale=0.02, shape=(8, 32)):
    """Projections of two layers, and a head that belongs to none."""
    model = nn.Module()
    for seed, name in enumerate(NAMES):
        place = model
        for word in name.split("."):
            if not hasattr(place, word):
                place.register_module(word, nn.Module())
            place = getattr(place, word)
        values = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        place.register_parameter("weight", nn.Parameter(values.bfloat16()))
    return model


def with_gradients(model):
    for seed, p in enumerate(model.parameters()):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(50 + seed)).bfloat16()
    return model


def optimizer_of(model, cls=MPlusAdam, **options):
    rates = {"lr": 1e-4} | ({"lr_mult": 4e-3} if cls is MPlusAdam else {})
    head = [p for name, p in model.named_parameters() if name == "lm_head.weight"]
    rest = [p for name, p in model.named_parameters() if name != "lm_head.weight"]
    groups = [{"params": rest, "role": "projection"}, {"params": head, "role": "head"}]
    return cls(groups, **rates, state_dtype="bf16", **options)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.11.mlp.up_proj.weight", 11),
        ("lm_head.weight", None),
        ("model.layers.norm", None),
        ("layers", None),
    ],
)
def test_the_layer_is_in_the_name(name, layer):
    assert layer_of(name) == layer


@pytest.mark.parametrize("fmt", ["bf16", "fp8_e5m2", "nvfp4"])
def test_layers_add_up_to_the_survival_of_their_roles(fmt):
    model = with_gradients(model_of())
    optimizer = optimizer_of(model, weight_format=fmt)
    found, whole = survey_layers(model, optimizer), survey(model, optimizer)["survival"]
    assert [(one["layer"], one["role"]) for one in found["layers"]] == [(0, "attention"), (1, "attention"), (1, "mlp")]
    for role in ("attention", "mlp"):
        own = [one for one in found["layers"] if one["role"] == role]
        assert sum(one["weights"] for one in own) == sum(whole[role]["weights"]) == sum(found["sizes"][role]["weights"])
        for branch in ("additive", "multiplicative", "both"):
            for key in ("intended", "survived"):
                assert sum(one[branch][key] for one in own) == sum(whole[role][branch][key])


def test_sizes_are_those_of_the_steps():
    """The first step of AdamW is the rate for every weight, whatever its gradient."""
    model = with_gradients(model_of())
    optimizer = optimizer_of(model, AdamW, weight_format="bf16")
    found = survey_layers(model, optimizer)
    values = dict(model.named_parameters())["layers.1.mlp.up_proj.weight"].detach().double()
    mlp = next(one for one in found["layers"] if one["role"] == "mlp")
    assert mlp["rms"] == pytest.approx(float(values.square().mean().sqrt()), rel=1e-6)
    assert mlp["additive"]["rms"] == pytest.approx(1e-4, rel=1e-4)
    assert found["sizes"]["mlp"]["additive"]["step"] == pytest.approx([1e-4] * len(found["sizes"]["mlp"]["bins"]))


@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [("bf16", ml_dtypes.bfloat16), ("fp8_e5m2", ml_dtypes.float8_e5m2), ("nvfp4", ml_dtypes.float4_e2m1fn)],
)
def test_spacings_are_those_of_the_format(fmt, dtype):
    """Every weight is a value of the format times a power of two, so that its neighbours are those of that value."""
    weights = torch.tensor([[2.0**k * (1 + m / 4) for m in range(4) for k in (-2, -1, 0, 1)]])
    if fmt == "nvfp4":
        weights = torch.tensor([[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0] * 2])
    model = nn.Module()
    model.weight = nn.Parameter(weights.bfloat16())
    model.weight.grad = torch.ones_like(model.weight)
    optimizer = AdamW([model.weight], lr=1e-12, weight_decay=0.0, weight_format=fmt)
    outwards, inwards = to_neighbours(optimizer.preview(model.weight))
    codes = np.arange(2**16 if fmt == "bf16" else 2**8)
    grid = np.unique(codes.astype(np.uint16 if fmt == "bf16" else np.uint8).view(dtype).astype(np.float64))
    grid = grid[np.isfinite(grid) & (grid >= 0)]
    place = np.searchsorted(grid, weights.numpy().astype(np.float64))
    assert np.array_equal(grid[place], weights.numpy())
    above = np.where(place + 1 < len(grid), grid[np.minimum(place + 1, len(grid) - 1)] - grid[place], 0)
    below = np.where(place > 0, grid[place] - grid[np.maximum(place - 1, 0)], 0)
    above = np.where(weights.numpy() == 0, 0, above)  # zero has none
    largest = weights.numpy() == weights.numpy().max()
    held = ~largest if fmt == "fp8_e5m2" else np.ones_like(largest)  # its block's scale fits the largest otherwise
    assert np.array_equal(outwards.numpy()[held], above[held])
    assert np.array_equal(inwards.numpy(), below)


def test_octaves_tell_how_far_a_step_is_from_half_a_spacing():
    """bf16 has a spacing of 2**-7 at 1: steps of 2**-10 and of 2**-5 are an eighth of it and four times it."""
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Module()])
    model.layers[0].mlp = nn.Module()
    model.layers[0].mlp.weight = nn.Parameter(torch.full((4, 4), 1.0).bfloat16())
    model.layers[0].mlp.weight.grad = -torch.ones(4, 4).bfloat16()
    for rate, octave, survived in ((1.1 * 2.0**-10, -3, 0), (1.1 * 2.0**-5, 2, 16)):
        optimizer = AdamW(model.parameters(), lr=rate, weight_format="bf16")
        found = survey_layers(model, optimizer)
        additive = found["sizes"]["mlp"]["additive"]
        assert (additive["octaves"], additive["counts"]) == ([octave], [16])
        assert found["layers"][0]["additive"]["survived"] == survived


def test_float32_weights_have_no_spacing():
    model = with_gradients(model_of())
    found = survey_layers(model, optimizer_of(model, weight_format="fp32"))
    assert found["sizes"]["mlp"]["both"]["octaves"] == []


# --- along training, and in exhibits ---------------------------------------------------------------------------


def test_a_run_that_records_layers_has_the_same_bits_and_lines_otherwise(tmp_path):
    data = make_data(tmp_path / "data")
    folders = [make_run(tmp_path / name, data, name="m-plus-adam") for name in ("plain", "layers")]
    for folder, layers in zip(folders, (False, True), strict=True):
        run = read_run_file(folder / "run.yaml")
        write_run_file(folder / "run.yaml", run.model_copy(update={"probe_every": 5, "probe_layers": layers}))
    assert "probe_layers" not in (folders[0] / "run.yaml").read_text()
    assert [train(folder) for folder in folders] == [0, 0]
    assert_same_run(folders[1], folders[0])
    plain, layered = ([json.loads(line) for line in (f / "probes.jsonl").open()] for f in folders)
    for line in layered:
        assert {entry["layer"] for entry in line.pop("layers")} == {0, 1}
        assert set(line.pop("sizes")) == {"attention", "mlp"}
    assert layered == plain


@pytest.fixture
def study(tmp_path):
    """Two optimizers in two regimes at two seeds, whose probes were taken of the model above."""
    content = {
        "models": {"tiny": {"hidden_size": 32, "intermediate_size": 88, "layers": 2, "heads": 2, "steps_1x": 50}},
        "budgets": [1],
        "optimizers": {"adamw": {"values": {"lr": 1e-4}}, "m-plus-adam": {"values": {"lr": 1e-4, "lr_mult": 4e-3}}},
        "tuning": {"mode": "fixed"},
        "report": "updates",
        "training": {"global_batch_size": 8, "micro_batch_size": 8, "device": "cpu", "threads": 1, "probe_every": 10,
                     "probe_layers": True},
    }  # fmt: skip
    made = fake_study(tmp_path / "results", **content)
    for key in run_keys(made.config):
        spec = {"training": {"steps": 50}, "optimizer": {"state_dtype": "bf16"}}
        made.edit_summary({"spec": spec, "hyperparameters": {"beta2": 0.98}}, **vars(key))
        model = with_gradients(model_of())
        fmt = {"fp32": "fp32", "bf16": "bf16"}[made.config.regimes[key.regime].masters]
        optimizer = optimizer_of(model, AdamW if key.optimizer == "adamw" else MPlusAdam, weight_format=fmt)
        line = {"step": 10, "loss": {"before": 5.0, "after": 4.9}, **survey(model, optimizer)}
        line |= survey_layers(model, optimizer)
        (made.paths.run(key) / "probes.jsonl").write_text(json.dumps(line) + "\n")
    return made


def test_rows_of_layers_are_summed_over_seeds(study):
    probes = read_probes(collect(study.config, study.paths))
    model = with_gradients(model_of())
    once = survey_layers(model, optimizer_of(model, AdamW, weight_format="bf16"))
    own = layer_shares(probes)
    own = own[(own["regime"] == "bf16-bf16") & (own["optimizer"] == "adamw") & (own["role"] == "attention")]
    expected = [one["additive"] for one in once["layers"] if one["role"] == "attention"]
    seeds = len({key.seed for key in run_keys(study.config)})
    assert own["layer"].tolist() == [0, 1]
    assert own["survived"].tolist() == [seeds * one["survived"] for one in expected]
    found = sizes(probes)
    shares = found[found["quantity"] == "octave"].groupby(["regime", "optimizer", "branch"])["value"].sum()
    assert np.allclose(shares, 1.0)
    steps = found[(found["quantity"] == "step_size") & (found["optimizer"] == "adamw")]
    assert np.allclose(steps["value"], 1e-4, rtol=1e-3)


def test_the_table_of_updates_has_a_row_per_branch(study):
    table = updates_table(source_of(collect(study.config, study.paths)))
    own = table.data.set_index(["regime", "optimizer", "branch"])
    model = with_gradients(model_of())
    record = survey(model, optimizer_of(model, AdamW, weight_format="bf16"))["survival"]
    counts = [record[role]["additive"] for role in ("attention", "mlp")]
    share = sum(sum(one["survived"]) for one in counts) / sum(sum(one["intended"]) for one in counts)
    assert own.loc[("bf16-bf16", "adamw", "additive"), "survive"] == pytest.approx(share)
    assert own.loc[("bf16-bf16", "m-plus-adam", "both"), "fell"] == len({key.seed for key in run_keys(study.config)})
    assert {len(row) for row in table.rows} == {len(table.header)}
    assert pd.isna(own.loc[("fp32-bf16", "adamw", "additive"), "octave"])  # float32 has no spacing


def test_a_report_of_updates_compares_no_perplexities(study):
    made = exhibits(study.config)
    assert {exhibit.needs for exhibit in made} == {"probes", "diagnostics/survival-grid"}
    assert {"layers", "sizes", "updates"} <= {exhibit.name for exhibit in made}
    without = study.config.model_copy(update={"report": "all", "training": study.config.training.model_copy(
        update={"probe_layers": False})})  # fmt: skip
    names = {exhibit.name for exhibit in exhibits(without)}
    assert "table2" in names
    assert not {"layers", "sizes", "updates"} & names
