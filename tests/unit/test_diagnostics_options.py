"""Options of the diagnostics: defaults, refusals, and that a configuration can name them without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from pydantic import BaseModel, ValidationError

from mpadam.cli import main
from mpadam.commands.diagnose import MAKES
from mpadam.study.diagnostics import KINDS, Diagnostics, MatrixFitting, parse_options


def test_text_holds_every_option_and_is_read_back_as_it_was():
    for kind in KINDS:
        own = getattr(Diagnostics(), kind.replace("-", "_"))
        text = Diagnostics().text(kind)
        assert set(json.loads(text)) == {field.name for field in fields(own)}
        assert parse_options(kind, text) == own


def test_a_changed_value_changes_the_text():
    changed = Diagnostics(matrix_fitting=replace(MatrixFitting(), seeds=4))
    assert changed.text("matrix-fitting") != Diagnostics().text("matrix-fitting")
    assert changed.text("capabilities") == Diagnostics().text("capabilities")


def test_the_command_offers_every_kind():
    assert tuple(MAKES) == KINDS


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("matrix-fitting", '{"seed": 3}', ("seed", "its options are", "seeds")),
        ("matrix-fitting", '{"seeds": 0}', ("seeds", "at least 1")),
        ("matrix-fitting", '{"rates_adamw": []}', ("rates_adamw", "at least one rate")),
        ("matrix-fitting", '{"ordinary": [4, 1]}', ("ordinary", "smaller first")),
        ("capabilities", '{"small": 0.5}', ("small", "below weight")),
        ("capabilities", '{"optimizers": ["adamv"]}', ("adamv", "adamw")),
        ("survival-grid", '{"lr": 0}', ("lr", "above 0")),
        ("dataflow", '{"optimizer": "m-adam"}', ("m-adam", "m-plus-adam")),
        ("overview", '{"colour": "red"}', ("colour", "none")),
        ("overview", "{", ("Invalid JSON",)),
    ],
)
def test_wrong_options_are_refused_by_name(kind, text, words):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the words are the point
        parse_options(kind, text)
    assert all(word in str(refused.value) for word in words)


def test_the_command_says_what_is_wrong_and_exits_with_2(tmp_path, capsys):
    assert main(["diagnose", "matrix-fitting", "--options", '{"seed": 3}', "--out", str(tmp_path)]) == 2
    assert "seed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_section_of_a_configuration_takes_single_fields():
    class Study(BaseModel):
        diagnostics: Diagnostics = Diagnostics()

    study = Study.model_validate({"diagnostics": {"matrix_fitting": {"size": 8}}})
    assert study.diagnostics.matrix_fitting == replace(MatrixFitting(), size=8)
    with pytest.raises(ValidationError, match="sise"):
        Study.model_validate({"diagnostics": {"matrix_fitting": {"sise": 8}}})


def test_reading_options_imports_no_torch():
    code = "import sys, mpadam.study.diagnostics, mpadam.commands.diagnose; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
