"""Run where the program has two more files, lion.py and int8.py: everything that reads cards knows them.

python drive.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpadam.numerics.formats import card_of
from mpadam.optim.names import parse_optimizer_name
from mpadam.plan.cost import Shape, weight_bytes
from mpadam.study.config import ModelConfig, RegimeConfig, StudyConfig, TrainingConfig
from mpadam.study.load import ConfigError, merge, parse_study, read_yaml
from mpadam.study.spec import numerics_version

ROOT, FOLDER = Path(__file__).parents[3], Path(sys.argv[1])
STUDY = {
    "regimes": {"int8-bf16": {"masters": "int8", "compute": "bf16", "shadow": "refreshed"}},
    "optimizers": {
        "lion-sr": {"values": {"lr": 1e-4, "interpolation": 0.8}, "search": {"lr": [1e-4, 2e-4, 3e-4, 4e-4]}}
    },
    "grids": [{"name": "all", "models": ["200k"], "regimes": ["int8-bf16"], "optimizers": ["lion-sr"]}],
}
EVERYTHING = merge(read_yaml(ROOT / "config.yaml"), read_yaml(ROOT / "studies/smoke.yaml"))


def refused(change: dict) -> str:
    try:
        parse_study(merge(EVERYTHING, merge(STUDY, change)))
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{change} was accepted")


def configuration() -> StudyConfig:
    config = parse_study(merge(EVERYTHING, STUDY))
    assert str(config.optimizer_name("lion-sr")) == "lion-sr"
    assert "interpolation" in refused({"optimizers": {"lion-sr": {"values": {"interpolation": 1.5}}}})
    assert "beta2" in refused({"optimizers": {"lion-sr": {"values": {"beta1": 0.9}}}})
    assert numerics_version("int8", "lion-sr") == 2
    assert "torch" not in sys.modules, "a study reads cards without torch"
    return config


def planned() -> float:
    """Bytes per parameter that the cost model counts for a model with next to no other parameters."""
    model = ModelConfig(hidden_size=64, intermediate_size=64, layers=50, heads=1, steps_1x=1)
    shape = Shape(model, vocab_size=1, sequence_length=8)
    training = TrainingConfig(micro_batch_size=8, global_batch_size=8)
    regime = RegimeConfig(masters="int8", compute="bf16")
    counted = weight_bytes(shape, regime, parse_optimizer_name("lion"), training)
    assert "torch" not in sys.modules
    return (counted.stored + counted.copy + counted.states) / shape.parameters


def trained() -> None:
    sys.path.insert(0, str(ROOT))
    from mpadam.study.spec import read_run_file, write_run_file
    from tests.unit.training_runs import make_data, make_run, summary_of, train

    data = make_data(FOLDER)
    values = {"lr": 3e-3, "interpolation": 0.8}
    run = make_run(FOLDER / "run", data, name="lion-sr", values=values, masters="int8", steps=40)
    path = run / "run.yaml"
    write_run_file(path, read_run_file(path).model_copy(update={"probe_every": 20}))
    assert train(run) == 0
    summary = summary_of(run)
    assert summary["status"] == "completed"
    assert summary["val_loss"] < data.manifest["unigram_entropy"]
    *_, line = map(json.loads, (run / "probes.jsonl").read_text().splitlines())
    survival = line["survival"]["attention"]
    assert 0 < sum(survival["additive"]["survived"]) < sum(survival["additive"]["intended"])
    assert "multiplicative" not in survival
    assert line["descent"]["all"]["additive"]["cosine"] > 0
    assert "int8" in (run / "weights.csv").read_text()


def measured(bytes_planned: float) -> None:
    from mpadam import Lion
    from mpadam.diagnostics.capabilities import produce
    from mpadam.diagnostics.survival_grid import measure as survival
    from mpadam.exhibits import table1
    from mpadam.exhibits.source import Source
    from mpadam.model.capabilities import probe, regime_support
    from mpadam.optim import memory_table
    from mpadam.study.diagnostics import Capabilities, SurvivalGrid

    assert Lion.rule == "lion"
    found, _ = memory_table.measure("lion", "int8")
    assert abs(found.weight + found.compute_copy + found.states - bytes_planned) < 0.05
    assert any("lion" in row and "int8" in row for row in memory_table.storage_rows())
    options = Capabilities(formats=("int8",), optimizers=("adamw", "lion"), write_backs=("nearest",), limit=60)
    produce(options, FOLDER)
    table = table1.make(Source(FOLDER))
    assert table.data["updates_to_change_sign"].notna().all()
    assert len(table.rows) == 2
    assert survival("int8", SurvivalGrid(bins=4, per_bin=2)).shares.shape[1] == 4
    assert "int8-bf16" in {support.regime for support in regime_support(probe())}


if __name__ == "__main__":
    configuration()
    assert card_of("int8").codes
    bytes_planned = planned()
    trained()
    measured(bytes_planned)
    print("known everywhere")
