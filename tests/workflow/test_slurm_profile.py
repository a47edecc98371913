"""The Slurm profile as the cluster sees it, on stubs: what is submitted and asked, what is said when it fails.

Cases S4, S5, S6, S9, S11 and S13. The same profile on a real Slurm: tests/cluster.
"""

import itertools
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.workflow.slurm_stub import StubbedSlurm, flags, make_stubbed, prepare_run
from tests.workflow.toy import ROOT

pytest.importorskip(
    "snakemake_executor_plugin_slurm", reason="the Slurm executor is missing: profiles/slurm/requirements.txt"
)

MODELS = ("60m", "130m", "350m", "1b")
#: The paper's study on text that is at hand, with a vocabulary as large as its own.
PAPER = """\
data: {source: builtin, path: null, revision: null, epochs: 1_000_000_000}
tokenizer: {source: bpe, vocab_size: 32_000, path: null, repo: null, revision: null}
"""
SITE = (
    "cluster: {account: proj-one, partition: cpu, gpu_partition: gpu, gpu_model: null, constraint: hbm3, qos: long,\n"
    "          max_hours: 4, sbatch: --mail-type=FAIL}\n"
)


#: A Python in which importing these is an error.
WITHOUT_TORCH = """\
import sys
from importlib.machinery import ModuleSpec

class Refuse:
    def find_spec(self, name, *_):  # whether it is installed may be asked
        return ModuleSpec(name, self) if name in ("torch", "transformers", "datasets", "huggingface_hub") else None

    def create_module(self, spec):
        raise ImportError(f"{spec.name} is imported while the workflow is parsed")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Refuse())
"""
LOST = ("PREEMPTED", "NODE_FAIL", "REQUEUED")


@pytest.fixture
def stubbed(tmp_path: Path) -> StubbedSlurm:
    return make_stubbed(tmp_path)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> StubbedSlurm:
    """A project for dry runs alone."""
    return make_stubbed(tmp_path_factory.mktemp("planned"))


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> StubbedSlurm:
    """One run of each size of the paper's study, submitted twice: each job fails, the profile's retry follows.

    Accounting refuses to answer (S9): with sacct Snakemake would wait for ever, and this would end by its time-out.
    """
    stubbed = make_stubbed(tmp_path_factory.mktemp("paper"))
    stubbed.answer(["FAILED"], failing={"sacct": "sacct: error: Slurm accounting storage is disabled"})
    (stubbed.project / "paper.yaml").write_text(PAPER)
    targets = [prepare_run(stubbed.project, "paper", model) for model in MODELS]
    done = stubbed.snakemake("--configfile", "paper.yaml", "--retries", "1", *targets)
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(stubbed.calls("sbatch")) == 2 * len(MODELS), done.stdout + done.stderr
    assert "SLURM status is: 'FAILED'" in done.stdout + done.stderr
    return stubbed


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> StubbedSlurm:
    """Three runs of the toy study on CPUs, in a container; Slurm loses each in another way, and puts it back."""
    stubbed = make_stubbed(tmp_path_factory.mktemp("lost"))
    stubbed.answer(*([state, "COMPLETED"] for state in LOST))
    with_image(stubbed, stubbed.project.parent / "my data", SITE)
    targets = [prepare_run(stubbed.project, "toy", "nano", seed=seed) for seed in (0, 1, 2)]
    stubbed.snakemake("--configfile", "toy.yaml", "site.yaml", "--config", "seeds=[0,1,2]", "--retries", "0",
                      "--latency-wait", "1", *targets)  # fmt: skip
    return stubbed


def submitted(stubbed: StubbedSlurm, model: str) -> list[list[str]]:
    return [call for call in stubbed.calls("sbatch") if any(f"model={model}," in argument for argument in call)]


def expected(model: str, *, minutes: int, mem: int, gpus: str, more: tuple[str, ...] = ()) -> list[str]:
    """What sbatch is told of a run of the paper's study; `more` stands between -A, -p and the rest."""
    return [
        "--parsable", "--job-name", "UUID",
        "--output", f"PROJECT/results/slurm-logs/rule_train/{model}_1_bf16-bf16_adamw_0/%j.log",
        "--export=ALL", "--comment", f"rule_train_wildcards_{model}_1_bf16-bf16_adamw_0", *more[:4],
        "-t", str(minutes), *more[4:], "--mem", str(mem), "--nodes=1", "--requeue", "--cpus-per-task=8",
        "--signal=USR1@120", "-D", "PROJECT", gpus,
    ]  # fmt: skip


# --- what is submitted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "gpus", "minutes", "mem"),
    [
        ("60m", "--gpus=h100:1", (30, 45), (6697, 10046)),
        ("130m", "--gpus=h100:1", (120, 180), (7609, 11414)),
        ("350m", "--gpus=h100:4", (255, 385), (41664, 62496)),
        ("1b", "--gpus=h100:8", (680, 1015), (176552, 264828)),
    ],
)
def test_s5_s13_sbatch_line_of_each_size(
    paper: StubbedSlurm, model: str, gpus: str, minutes: tuple[int, int], mem: tuple[int, int]
) -> None:
    """Exactly one flag about GPUs, whole minutes, megabytes; more time and memory in the second attempt."""
    first, second = submitted(paper, model)
    assert flags(first, project=paper.project) == expected(model, minutes=minutes[0], mem=mem[0], gpus=gpus)
    assert flags(second, project=paper.project) == expected(model, minutes=minutes[1], mem=mem[1], gpus=gpus)


def test_s13_a_job_runs_the_rule_once_and_names_its_attempt(paper: StubbedSlurm) -> None:
    """Retries are the profile's alone: inside the job there are none."""
    for attempt, call in enumerate(submitted(paper, "60m"), start=1):
        (wrapped,) = (argument for argument in call if argument.startswith("--wrap="))
        assert f"--attempt {attempt} " in wrapped
        assert "--retries 0 " in wrapped
        assert "--executor slurm-jobstep" in wrapped


def test_s13_logs_are_kept_under_results_and_slashes_of_wildcards_make_no_folders(paper: StubbedSlurm) -> None:
    folders = sorted(path.name for path in (paper.project / "results/slurm-logs/rule_train").iterdir())
    assert folders == sorted(f"{model}_1_bf16-bf16_adamw_0" for model in MODELS)
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
    assert profile["slurm-keep-successful-logs"] is True
    assert profile["latency-wait"] >= 30


def test_several_gpus_are_one_task_of_torchrun(paper: StubbedSlurm) -> None:
    done = paper.snakemake("--configfile", "paper.yaml", "-n", "-p", *(prepare_run(paper.project, "paper", "350m"),))
    assert "torchrun --standalone --nproc-per-node 4 -m mpadam train" in done.stdout + done.stderr


def test_s5_what_the_site_decides_is_in_one_file_and_survives_default_resources(stubbed: StubbedSlurm) -> None:
    (stubbed.project / "site.yaml").write_text(PAPER + SITE)
    target = prepare_run(stubbed.project, "paper", "1b")
    stubbed.snakemake("--configfile", "site.yaml", "--retries", "0", "--default-resources", "mem_mb=1", "runtime=1",
                      "--", target)  # fmt: skip
    (call,) = stubbed.calls("sbatch")
    wanted = expected(
        "1b", minutes=240, mem=176552, gpus="--gpus=8",
        more=("-A", "proj-one", "-p", "gpu", "-C", "hbm3", "--qos=long"),
    )  # fmt: skip
    wanted.insert(wanted.index("-D"), "--mail-type=FAIL")
    assert flags(call, project=stubbed.project) == wanted


def test_s5_a_job_without_gpus_asks_for_none(lost: StubbedSlurm) -> None:
    """The toy study trains on the CPU: no GPU flag, no GPU partition, one task."""
    said = flags(lost.calls("sbatch")[0], project=lost.project)
    assert not [flag for flag in said if "gpu" in flag.lower() or "gres" in flag or flag == "-C"]
    assert "--ntasks=1" in said
    assert said[said.index("-p") + 1] == "cpu"
    assert said[said.index("-t") + 1] == "5"


def test_s5_account_partition_and_the_like_reach_jobs_of_every_kind(planned: StubbedSlurm) -> None:
    """Also the diagnostics and measurements of `all_paper`, whose time and memory stand in their rules as well."""
    (planned.project / "account.yaml").write_text(SITE)
    done = planned.snakemake("-n", "--configfile", "toy.yaml", "account.yaml", "--default-resources", "mem_mb=1", "--",
                             "all", "all_paper")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^rule (\w+):$.*?^    resources: (.*?)$", done.stdout, re.MULTILINE | re.DOTALL))
    asked = {rule: found[rule] for rule in found if re.match("data|trials_|train|diagnose|measure", rule)}
    assert len(asked) == 5
    for rule, resources in asked.items():
        partition = "gpu" if " gpu=1," in resources else "cpu"
        for wanted in ("slurm_account=proj-one", f"slurm_partition={partition}", "qos=long", "--mail-type=FAIL"):
            assert wanted in resources, rule
        assert rule == "data" or (" runtime=" in resources and " mem_mb=1," not in resources), rule


def test_every_setting_of_the_profile_has_a_comment() -> None:
    for block in (ROOT / "profiles/slurm/config.yaml").read_text().split("\n\n"):
        assert block.startswith("#"), block
    site = (ROOT / "profiles/slurm/cluster.yaml").read_text().splitlines()
    for above, line in itertools.pairwise(site):
        assert not line.startswith("  ") or "#" in line or "#" in above, line


# --- from a fresh clone ----------------------------------------------------------------------------------------------


def test_s6_the_readme_command_finds_the_profile_in_a_fresh_clone(planned: StubbedSlurm) -> None:
    assert (planned.project / "slurm").is_symlink()
    done = planned.snakemake("-n", "--configfile", "toy.yaml")
    assert done.returncode == 0, done.stderr
    assert "Using profiles slurm" in done.stderr
    assert list((planned.project / "home").rglob("config*.yaml")) == []  # HOME is empty


def test_s6_from_another_folder_the_error_names_the_profile(planned: StubbedSlurm, tmp_path: Path) -> None:
    done = planned.snakemake("-n", cwd=tmp_path)
    assert done.returncode != 0
    assert "slurm" in done.stderr
    assert "profile" in done.stderr.lower()


def test_s13_dry_run_of_the_paper_study(planned: StubbedSlurm) -> None:
    """As typed in a fresh clone: every job, in less than 30 s of CPU time, and neither torch nor the hub is needed."""
    (planned.stubs / "sitecustomize.py").write_text(WITHOUT_TORCH)
    before = os.times()
    done = planned.snakemake("-n", "--quiet", "all")
    after = os.times()
    assert done.returncode == 0, done.stdout + done.stderr
    assert after.children_user + after.children_system - before.children_user - before.children_system < 30


# --- what the cluster answers ----------------------------------------------------------------------------------------


def test_a_refused_submission_is_said_in_the_clusters_words(stubbed: StubbedSlurm) -> None:
    refusal = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    stubbed.answer(["FAILED"], failing={"sbatch": refusal})
    target = prepare_run(stubbed.project, "toy", "nano")
    done = stubbed.snakemake("--configfile", "toy.yaml", "--retries", "0", target)
    assert done.returncode == 1
    assert refusal in done.stdout + done.stderr
    assert "sbatch call:" in done.stdout + done.stderr
    assert not (stubbed.project / target).exists()


def test_s9_a_job_that_slurm_puts_back_is_submitted_once(lost: StubbedSlurm) -> None:
    assert len(lost.calls("squeue")) >= 2
    assert len(lost.calls("sbatch")) == len(LOST)
    assert all("--requeue" in call for call in lost.calls("sbatch"))


# --- containers ------------------------------------------------------------------------------------------------------

APPTAINER = """\
#!{python}
import json, os, pathlib, subprocess, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("apptainer version 1.4.5")
    sys.exit()
with pathlib.Path({log!r}).open("a") as file:
    file.write(json.dumps({{"argv": arguments, "bind": os.environ.get("APPTAINER_BIND")}}) + "\\n")
image = next(index for index, argument in enumerate(arguments) if argument.endswith("image.sif"))
sys.exit(subprocess.run(arguments[image + 1:]).returncode)
"""


def with_image(stubbed: StubbedSlurm, data: Path, more: str = "") -> Path:
    """Switch the container on, its image and Apptainer stubs, the data in a folder with a space in its name."""
    log = stubbed.stubs / "apptainer.jsonl"
    for name in ("apptainer", "singularity"):
        (stubbed.stubs / name).write_text(APPTAINER.format(python=sys.executable, log=str(log)))
        (stubbed.stubs / name).chmod(0o755)
    shutil.move(stubbed.project / "c4", data)
    (stubbed.project / "image.sif").touch()
    elsewhere = data.parent / "results elsewhere"
    elsewhere.mkdir()
    (stubbed.project / "results").symlink_to(elsewhere)
    (stubbed.project / "site.yaml").write_text(
        f"data: {{path: {str(data)!r}}}\ncontainer: {{image: image.sif, binds: [{str(stubbed.stubs)!r}]}}\n" + more
    )
    return log


def test_s11_jobs_in_a_container_get_gpus_and_every_folder_of_the_study(stubbed: StubbedSlurm, tmp_path: Path) -> None:
    data = tmp_path / "my data"
    log = with_image(stubbed, data)
    target = "results/toy/study.yaml"
    done = stubbed.snakemake("--configfile", "toy.yaml", "site.yaml", "--", target)
    assert done.returncode == 0, done.stdout + done.stderr
    call = json.loads(log.read_text().splitlines()[-1])
    assert call["argv"][0] == "exec"
    assert call["argv"][call["argv"].index("--home") + 1] == str(stubbed.project)
    assert "--nv" in call["argv"]
    assert call["bind"].split(",") == sorted([str(data), str(tmp_path / "results elsewhere"), str(stubbed.stubs)])


def test_s11_a_submitted_job_hands_the_same_arguments_on(lost: StubbedSlurm) -> None:
    """The job parses the workflow itself, so binds are made there again; --nv travels in its command."""
    for call in lost.calls("sbatch"):
        (wrapped,) = (argument for argument in call if argument.startswith("--wrap="))
        assert "--apptainer-args base64//LS1udg==" in wrapped  # --nv
        assert "--deployment-method apptainer" in wrapped
        assert "site.yaml" in wrapped


def test_a_missing_image_is_an_error_before_any_job_is_planned(planned: StubbedSlurm) -> None:
    (planned.project / "site.yaml").write_text("container: {image: containers/absent.sif}\n")
    done = planned.snakemake("-n", "--configfile", "toy.yaml", "site.yaml")
    assert done.returncode == 2
    assert "container.image: there is no containers/absent.sif; build it (make image-h100" in done.stderr
    assert planned.calls("sbatch") == []


# --- numbers and names ----------------------------------------------------------------------------------------------


def test_s4_a_rate_is_the_same_number_however_it_is_written(planned: StubbedSlurm) -> None:
    """Three entries, three spellings: one number in each request, and no float in a path."""
    (planned.project / "rates.yaml").write_text(
        "optimizers:\n  adamw@a1: {values: {lr: 8e-5}}\n  adamw@a2: {values: {lr: '8.0e-5'}}\n"
        "  adamw@a3: {values: {lr: 0.00008}}\n"
        "grids: [{name: toy, models: [nano], regimes: [bf16-bf16], optimizers: [adamw@a1, adamw@a2, adamw@a3]}]\n"
    )
    done = planned.snakemake("-n", "-p", "--configfile", "toy.yaml", "rates.yaml", "--until", "spec")
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if "mpadam spec" in line]
    assert len(commands) == 6
    assert all(re.search(r'\\?"lr\\?": ?8e-05', command) for command in commands), commands[0]
    assert "8e-05" not in "".join(re.findall(r"--out \S+", done.stdout))


def test_s4_a_name_that_yaml_reads_as_false_is_refused_by_its_key(planned: StubbedSlurm) -> None:
    (planned.project / "no.yaml").write_text("optimizers: {no: {optimizer: adamw, values: {lr: 8e-5}}}\n")
    done = planned.snakemake("-n", "--configfile", "toy.yaml", "no.yaml")
    assert done.returncode == 2
    assert "optimizers" in done.stderr
    assert "quote it" in done.stderr
