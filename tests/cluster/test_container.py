"""The CPU image: one experiment by hand, equal to the one outside, and nothing of the user's home in it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import IMAGE
from tests.cluster.lab import make_lab, numbers
from tests.workflow.toy import OVERLAY

pytestmark = [pytest.mark.apptainer, pytest.mark.slow]

CACHES = ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR", "CUDA_CACHE_PATH")


def in_image(*command: str, cwd: Path, action: str = "exec", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run something in the image, from `cwd`, which is bound under its own name. Caches of the tests stay outside."""
    inherited = {name: value for name, value in os.environ.items() if name not in CACHES}
    return subprocess.run(
        ["apptainer", action, "--bind", str(cwd), "--pwd", str(cwd), str(IMAGE), *command],
        cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_apptainer_exec_trains_a_run_bit_for_bit(tmp_path: Path) -> None:
    """`apptainer exec IMAGE mpadam train --run-dir D`, with a HOME that can only be read."""
    lab = make_lab(tmp_path / "project", OVERLAY)
    run = lab.run_folder()
    target = str(run.relative_to(lab.folder) / "summary.json")
    done = lab.run(target, profile="profiles/local")
    assert done.returncode == 0, done.stdout + done.stderr
    outside = numbers(run)
    for path in run.iterdir():
        if path.name != "run.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    trained = in_image("mpadam", "train", "--run-dir", str(run), cwd=lab.folder, HOME=str(home))
    assert trained.returncode == 0, trained.stderr
    assert numbers(run) == outside
    assert [path.name for path in home.iterdir() if path.name != ".apptainer"] == []  # that is Apptainer's own
    environment = json.loads((run / "environment.json").read_text())
    assert environment["container"] == str(IMAGE)
    assert environment["container_digest"].startswith("sha256:")


def test_nothing_of_the_users_python_comes_in(tmp_path: Path) -> None:
    """A user site, a PYTHONPATH and a broken mpadam there: the image's own is imported."""
    broken = tmp_path / "broken" / "mpadam"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('of the home')\n")
    site = tmp_path / ".local/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    shutil.copytree(broken, site / "mpadam")
    done = in_image(
        "python", "-c", "import mpadam; print(mpadam.__file__)", cwd=tmp_path,
        HOME=str(tmp_path), PYTHONPATH=str(broken.parent), PYTHONUSERBASE=str(tmp_path / ".local"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("/opt/mpadam/")


def test_caches_are_a_folder_of_the_job(tmp_path: Path) -> None:
    program = f"import os; print(*(os.environ[name] for name in {CACHES}), sep='\\n')"
    done = in_image("python", "-c", program, cwd=tmp_path, TMPDIR=str(tmp_path), SLURM_JOB_ID="17")
    folders = done.stdout.splitlines()
    assert len(folders) == len(CACHES), done.stderr
    assert all(folder.startswith(f"{tmp_path}/mpadam-{os.getuid()}-17") for folder in folders)
    assert (tmp_path / f"mpadam-{os.getuid()}-17").stat().st_mode & 0o777 == 0o700
    kept = in_image("python", "-c", program, cwd=tmp_path, TMPDIR=str(tmp_path), TRITON_CACHE_DIR="/elsewhere")
    assert kept.stdout.splitlines()[1] == "/elsewhere"


def test_run_is_mpadam_and_labels_say_what_it_was_built_from(tmp_path: Path) -> None:
    done = in_image("--version", cwd=tmp_path, action="run")
    assert done.stdout.startswith("mpadam ")
    inspected = subprocess.run(
        ["apptainer", "inspect", "--json", str(IMAGE)], capture_output=True, text=True, check=True
    )
    labels = json.loads(inspected.stdout)["data"]["attributes"]["labels"]
    assert labels["org.mpadam.base.digest"].startswith("sha256:")
    assert labels["org.mpadam.commit"] not in ("", "unknown")


def test_compiled_steps_find_a_compiler(tmp_path: Path) -> None:
    program = "import torch; f = torch.compile(lambda x: x * 2 + 1); print(f(torch.ones(3)).tolist())"
    # One kernel is made without compiled headers, which take longer than it does.
    done = in_image("python", "-c", program, cwd=tmp_path, TMPDIR=str(tmp_path),
                    TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0")  # fmt: skip
    assert done.stdout.strip() == "[3.0, 3.0, 3.0]", done.stderr
