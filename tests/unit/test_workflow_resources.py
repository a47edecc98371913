"""What jobs ask Slurm for, and which folders and image a container gets."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpadam.plan.model import runtime_minutes
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey
from mpadam.study.load import load_study, merge, parse_study, read_yaml
from mpadam.study.paths import StudyPaths
from mpadam.workflow.container import bind_paths, bind_variable, checked_image
from mpadam.workflow.requests import Workflow
from mpadam.workflow.resources import STOP_AFTER, launch, site_resources, training_resources

ROOT = Path(__file__).parents[2]


def study(**sections: Any) -> StudyConfig:
    """The paper's study with other sections."""
    return parse_study(merge(read_yaml(ROOT / "config.yaml"), sections))


def asked(config: StudyConfig, model: str, *, attempt: int = 1) -> dict[str, Any]:
    """The resources of a run, called as Snakemake calls them."""
    key = RunKey(model, 1, "bf16-bf16", "adamw", 0)
    found = training_resources(config, lambda _: key, lambda _: 1000)
    wildcards = SimpleNamespace()
    calls = {"mem_mb": (wildcards, attempt), "runtime": (wildcards, attempt)}
    return {name: value(*calls.get(name, (wildcards,))) if callable(value) else value for name, value in found.items()}


def test_gpus_follow_the_size_and_stand_on_one_node() -> None:
    wanted = {"60m": 1, "130m": 1, "350m": 4, "1b": 8}
    for model, gpus in wanted.items():
        found = asked(study(), model)
        assert (found["gpu"], found["nodes"], found["gpu_model"]) == (gpus, 1, "h100")
        assert found["launcher"] == launch(gpus)


def test_memory_and_time_grow_with_the_attempt() -> None:
    first, second, third = (asked(study(), "130m", attempt=n) for n in (1, 2, 3))
    assert [found["mem_mb"] for found in (first, second, third)] == [1000, 1500, 2000]
    assert first["runtime"] < second["runtime"] < third["runtime"]
    assert first["runtime"] == runtime_minutes(study(), RunKey("130m", 1, "bf16-bf16", "adamw", 0), 1)


def test_what_is_not_set_is_not_asked_for() -> None:
    assert set(asked(study(cluster={"gpu_model": None}), "60m")) == {
        "mem_mb", "runtime", "launcher", "gpu", "nodes", "slurm_extra"
    }  # fmt: skip
    assert site_resources(study()) == {"slurm_extra": "--signal=USR1@120"}


def test_gpu_jobs_have_a_partition_and_a_constraint_of_their_own() -> None:
    config = study(cluster={"partition": "cpu", "gpu_partition": "gpu", "constraint": "nvlink", "account": "a"})
    assert asked(config, "60m")["slurm_partition"] == "gpu"
    assert asked(config, "60m")["constraint"] == "nvlink"
    assert site_resources(config) == {
        "slurm_account": "a", "slurm_partition": "cpu", "slurm_extra": "--signal=USR1@120"
    }  # fmt: skip


def test_a_job_is_never_longer_than_the_site_takes() -> None:
    assert asked(study(cluster={"max_hours": 2}), "1b")["runtime"] == 120
    assert asked(study(cluster={"max_hours": 2}), "60m")["runtime"] == asked(study(), "60m")["runtime"]


@pytest.mark.parametrize(("runtime", "minutes"), [(1, 0), (2, 1), (5, 4), (60, 53), (150, 134), (1440, 1424)])
def test_training_stops_ahead_of_the_limit(runtime: int, minutes: int) -> None:
    line = "echo " + STOP_AFTER.replace("{resources.runtime}", str(runtime))
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == f"--stop-after-minutes {minutes}\n"


@pytest.mark.parametrize(("per_job", "jobs"), [("1", 8), ("all", 2)])
def test_the_job_of_further_trials_gets_the_time_of_all_that_are_allowed(per_job: str, jobs: int) -> None:
    """Issue 17, B4: 8 further trials take as long as 8 jobs of one trial, or as 2 of all 4 that are listed."""
    words = [f"tuning={{extend: 8, trials_per_job: {per_job}}}"]
    config = load_study([ROOT / "config.yaml", ROOT / "studies/smoke.yaml"], words)
    key = TuningKey("200k", "bf16-bf16", "adamw")
    runtime = Workflow(config, StudyPaths("smoke")).extension_resources()["runtime"]
    assert runtime(SimpleNamespace(**vars(key)), 1) == jobs * runtime_minutes(config, key)


def test_one_process_a_gpu() -> None:
    assert launch(0) == launch(1) == "mpadam"
    assert launch(4) == "torchrun --standalone --nproc-per-node 4 -m mpadam"


# --- containers ------------------------------------------------------------------------------------------------------


def test_a_missing_image_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*absent\.sif; build it \(make image-h100"):
        checked_image(study(container={"image": str(tmp_path / "absent.sif")}))
    (tmp_path / "there.sif").touch()
    assert checked_image(study(container={"image": str(tmp_path / "there.sif")})) == str(tmp_path / "there.sif")
    assert checked_image(study(container={"image": "docker://example/image:1"})) == "docker://example/image:1"
    assert checked_image(study()) is None


def test_an_image_path_that_snakemake_would_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds ' '"):
        checked_image(study(container={"image": str(tmp_path / "my image.sif")}))


def test_folders_outside_the_project_are_bound_once_and_those_inside_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, scratch = tmp_path / "project", tmp_path / "my scratch"
    for folder in (project / "tokenizer", scratch / "c4", scratch / "results"):
        folder.mkdir(parents=True)
    (project / "results").symlink_to(scratch / "results")
    monkeypatch.chdir(project)
    config = study(
        data={"source": "c4_folder", "path": str(scratch / "c4"), "revision": None},
        tokenizer={"source": "folder", "path": "tokenizer", "repo": None, "revision": None},
    )
    assert bind_paths(config) == sorted([str(scratch / "c4"), str(scratch / "results")])
    everything = config.model_copy(update={"container": config.container.model_copy(update={"binds": [str(scratch)]})})
    assert bind_paths(everything) == [str(scratch)]


def test_n22_a_part_of_the_results_on_another_disk_is_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = study()
    for part in ("data", "runs"):
        (tmp_path / "disk" / part).mkdir(parents=True)
        (tmp_path / "project/results" / config.study).mkdir(parents=True, exist_ok=True)
        (tmp_path / "project/results" / config.study / part).symlink_to(tmp_path / "disk" / part)
    monkeypatch.chdir(tmp_path / "project")
    assert bind_paths(config) == [str(tmp_path / "disk" / part) for part in ("data", "runs")]


def test_a_link_to_data_is_bound_at_what_it_points_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "c4").mkdir()
    (tmp_path / "project/data").symlink_to(tmp_path / "c4")
    monkeypatch.chdir(tmp_path / "project")
    assert bind_paths(study(data={"source": "c4_folder", "path": "data", "revision": None})) == [str(tmp_path / "c4")]


@pytest.mark.parametrize(("folder", "message"), [("a,b", "comma or colon"), ("absent", "there is no")])
def test_folders_that_cannot_be_bound_are_refused(tmp_path: Path, folder: str, message: str) -> None:
    if folder != "absent":
        (tmp_path / folder).mkdir()
    with pytest.raises(ValueError, match=message):
        bind_paths(study(container={"binds": [str(tmp_path / folder)]}))


def test_binds_of_the_user_stay() -> None:
    assert bind_variable(["/a b"], "/scratch:/s") == "/scratch:/s,/a b"
    assert bind_variable(["/a"]) == "/a"
    assert bind_variable(["/a"], bind_variable(["/a"], "/scratch:/s")) == "/scratch:/s,/a"
