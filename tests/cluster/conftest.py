"""A throw-away Slurm cluster of one node and an image, where this machine has them; else these tests are skipped.

They take nodes down and kill daemons, so they run on a cluster whose name is `lab`, and on no other.
"""

import fcntl
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.lab import Lab, bring_back_node, make_lab
from tests.workflow.toy import OVERLAY, ROOT

IMAGE = ROOT / "containers" / "mpadam-cpu.sif"

#: One run that takes some ten seconds on one core: long enough to be interrupted, with a checkpoint now and then.
LONG = (
    OVERLAY.replace("steps_1x: 6", "steps_1x: 800")
    .replace("epochs: 8", "epochs: 1000")
    .replace("log_every: 2, checkpoint_every: 3", "log_every: 20, checkpoint_every: 100")
    .replace("seeds: [0, 1]", "seeds: [0]")
    .replace("optimizers: [adamw, m-plus-adam]}", "optimizers: [adamw]}")
)


def missing_slurm() -> str | None:
    """Why there is no Slurm to test on, None if there is one."""
    if find_spec("snakemake_executor_plugin_slurm") is None:
        return "no Slurm executor: pip install -r profiles/slurm/requirements.txt"
    if shutil.which("scontrol") is None:
        return "no Slurm on this machine"
    done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False)
    name = re.search(r"^ClusterName\s*=\s*(\S+)", done.stdout, re.MULTILINE)
    if name is None:
        return "no Slurm controller answers"
    return (
        None if name[1] == "lab" else f"Slurm's cluster is called {name[1]}, not lab: these tests take its nodes down"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here, and say why."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    reasons = {"slurm": missing_slurm() if ours else None, "apptainer": None}
    if shutil.which("apptainer") is None:
        reasons["apptainer"] = "no apptainer on this machine"
    elif not IMAGE.exists():
        reasons["apptainer"] = "no image: make image-cpu"
    for item in ours:
        for name, reason in reasons.items():
            if reason is not None and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The long run, trained without interruption by the local profile; read only."""
    lab = make_lab(tmp_path_factory.mktemp("reference") / "project", LONG)
    target = str(lab.run_folder().relative_to(lab.folder) / "summary.json")
    done = lab.run(target, profile="profiles/local")
    assert done.returncode == 0, done.stdout + done.stderr
    return lab


@pytest.fixture
def cluster() -> Iterator[None]:
    """The cluster for one test alone: they take its node down, and may be started by several processes."""
    with Path(tempfile.gettempdir(), "mpadam-slurm-lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def lab(cluster: None, reference: Lab, tmp_path: Path) -> Iterator[Lab]:
    """The same project with its data and nothing trained; what it leaves in the queue is cancelled."""
    shutil.copytree(reference.folder, tmp_path / "project", symlinks=True)
    lab = Lab(tmp_path / "project")
    for path in lab.run_folder().iterdir():
        if path.name != "run.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    yield lab
    lab.cancel_all()
    bring_back_node()
