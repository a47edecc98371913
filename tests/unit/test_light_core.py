"""Issue 21, part B: the optimizers need torch and numpy alone. What needs more says which extra installs it.

The package's wheel is built and installed without a network into an environment of its own, whose other packages are
links to those here: torch, numpy and what their metadata asks for.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mpadam
from mpadam import commands, extras
from mpadam.data import builtin

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NEEDS_HF = {"UpdateProbeCallback", "mpadam.probes.callback"}  # public names and modules of the core that do


def closure(wanted: Iterable[str]) -> dict[str, list[Requirement]]:
    """Distributions that these requirements lead to, by the metadata of what is installed here, and who asks how."""
    found: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        found.setdefault(name, []).append(asked)
        for extra in {"", *asked.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            needs = map(Requirement, distribution(name).requires or ())
            waiting += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return found


# --- in an environment of torch and numpy -----------------------------------------------------------------------------


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def make_environment(folder: Path, names: Iterable[str]) -> Path:
    """A virtual environment with links to these distributions; returns its Python."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in names:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(installed.locate_file(top)))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What light_core.py finds there."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "empty").mkdir()
    source = folder / "source"  # a build writes next to the sources
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    python = make_environment(folder / "env", closure(["torch", "numpy"]))
    install = ("--python", python, "install", "--quiet", "--no-index", "--no-compile")
    pip("wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    pip(*install, *folder.glob("mpadam-*.whl"))  # with its dependencies, which are all there
    script = Path(__file__).with_name("light_core.py")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-I", script, folder / "empty"], cwd=folder, env=inherited, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not {"pandas", "pydantic", "transformers", "yaml"} & set(found["installed"])
    return found


@pytest.mark.slow
def test_weights_in_bf16_fp8_and_nvfp4_train_by_eager_and_compiled_steps(light: dict[str, Any]) -> None:
    for kind in ("eager", "compiled"):
        assert set(light[kind]) == {"bf16", "fp8_e5m2", "nvfp4"}
        for weight_format, (first, last) in light[kind].items():
            assert last < first - 0.1, (kind, weight_format, first, last)
    assert light["graphs"] >= 3


@pytest.mark.slow
def test_every_public_name_is_there_and_the_import_is_lazy(light: dict[str, Any]) -> None:
    assert light["lazy"]
    assert set(light["names"]) == set(mpadam.__all__)
    assert NEEDS_HF.issuperset(name for name, error in light["names"].items() if error)
    for error in filter(None, light["names"].values()):
        assert error.startswith("MissingExtraError: "), error
        assert error.endswith("pip install '.[hf]'  in the clone"), error


@pytest.mark.slow
def test_every_module_imports_or_names_the_extra(light: dict[str, Any]) -> None:
    """Functions of the package are in modules; those of the optimizers, formats and probes are all there."""
    failed = {name: error for name, error in light["modules"].items() if error}
    for name, error in failed.items():
        assert error.startswith("MissingExtraError: "), (name, error)
        assert "pip install '.[" in error, (name, error)
    assert {"mpadam.study.load", "mpadam.training.export", "mpadam.exhibits.registry"} <= set(failed)
    core = ("mpadam.numerics", "mpadam.optim", "mpadam.probes", "mpadam.commands", "mpadam.cli")
    assert {name for name in failed if name.startswith(core)} <= NEEDS_HF


@pytest.mark.slow
def test_every_command_ends_in_one_line_that_names_the_extra(light: dict[str, Any]) -> None:
    names = {path.stem.replace("_", "-") for path in Path(commands.__path__[0]).glob("*.py")} - {"--init--"}
    assert set(light["commands"]) == names
    for command, (code, said) in light["commands"].items():
        assert code == 2, (command, said)
        assert re.fullmatch(rf"mpadam {command}: .* pip install '\.\[pipeline\]'  in the clone\n", said), (
            command,
            said,
        )


# --- the extras -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_the_packages_that_are_looked_for_are_those_that_the_extra_lists(extra: str) -> None:
    homes = packages_distributions()
    named = {canonicalize_name(Requirement(text).name) for text in EXTRAS[extra]}
    assert {canonicalize_name(homes[module][0]) for module in extras.EXTRAS[extra]} == named


def test_extras_have_ranges_and_make_env_pins_all_that_they_lead_to() -> None:
    """Before, sympy and networkx were pinned for everybody, and `make env` left accelerate out."""
    asked = [text for extra in ("hf", "pipeline") for text in EXTRAS[extra]]
    assert [text for text in (*PROJECT["dependencies"], *asked) if "==" in text] == []
    assert {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]} == {"torch", "numpy"}
    lines = (ROOT / "envs" / "cpu.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(re.fullmatch(r"([\w.-]+)==(\S+)", line).groups() for line in lines if re.match(r"[\w]", line))  # type: ignore[union-attr]
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    for name, requirements in closure([*PROJECT["dependencies"], *asked]).items():
        if name != "setuptools":  # which an environment has from the start
            assert all(each.specifier.contains(pinned[name]) for each in requirements), (name, requirements)
    assert {name: pinned[name] for name in builtin.PINS} == builtin.PINS


def test_every_package_that_the_source_imports_comes_with_an_extra() -> None:
    """Itself, or with one that is listed, as pyarrow with datasets."""
    homes = packages_distributions()
    known = set(closure([*PROJECT["dependencies"], *EXTRAS["pipeline"]]))
    known |= {canonicalize_name(Requirement(text).name) for text in EXTRAS["gpu"]}
    for path in (ROOT / "src").rglob("*.py"):
        for module in imported(path.read_text(encoding="utf-8")) - sys.stdlib_module_names - OWN:
            distributions = {canonicalize_name(name) for name in homes.get(module, [module])}
            assert distributions & known, (path, module)


OWN = {"mpadam", "snakemake_logger_plugin_mpadam"}


def imported(source: str) -> set[str]:
    """Top-level modules that a source imports, wherever the statement is."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_what_the_docs_install_for_the_trainer_is_all_that_its_example_needs() -> None:
    page = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    section = page.partition("\n## In a Hugging Face Trainer\n")[2].partition("\n## ")[0]
    (extra,) = re.findall(r"pip install '[.\w]+\[(\w+)\]'", section)
    trainer = [text for text in distribution("transformers").requires or () if "accelerate>" in text]
    needed = {Requirement(text).name for text in trainer} | imported("".join(re.findall(BLOCK, section)))
    assert {"accelerate", "transformers"} < needed
    assert needed - OWN <= set(closure([*PROJECT["dependencies"], *EXTRAS[extra]]))


BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
