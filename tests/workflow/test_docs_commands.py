"""Every command of the README and the docs runs, as printed, in a project whose study is a toy.

What a page calls the smoke study, a run folder or a placeholder is what the toy has in its place; nothing else of a
command is changed. Commands that need what is not here (a GPU, Slurm, an image) are named below with what tries them
instead. `mpadam` with plain arguments runs in this process, which has imported torch and what draws figures already.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mpadam.cli import main
from tests.workflow.toy import ROOT, Toy

PAGES = ["README.md", "results/README.md", *(p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob("docs/**/*.md")))]
PROGRAMS = ("mpadam", "snakemake", r"\.venv/bin/snakemake", "torchrun", "make", "apptainer", "sbatch", "python")
RUN = "results/toy/runs/nano/1x/bf16-bf16"

#: what a page says -> what the toy has in its place, in this order
STAND_INS = {
    r" {3,}(?!-)\S.*$": "",  # the explanation next to a command
    r"\s+#.*$": "",
    r"\.venv/bin/": "",
    r"results/(?:smoke|paper)/runs/\w+/1x/bf16-bf16": RUN,
    r"results/(?:smoke|paper|long)\b": "results/toy",
    r"results/example/long\b": "results/example/toy",
    r"\bmpadam (status|plan) (?:smoke|one-\w+)": r"mpadam \1 --config config.yaml",
    r" +--price-per-gpu-hour \S+": "",  # the toy trains on a CPU
    r" +--config studies/[\w-]+\.yaml": "",
    r"--config config\.yaml": "--config config.yaml --config toy.yaml",
    r"(mpadam tokenize .*--shard train-)00000(-of-01024)": r"\g<0> && \g<1>00001\2",  # which has two shards
    r"(diagnose matrix-fitting .*)": r"""\1 --options '{"size": 8, "steps": 30, "seeds": 1, "tuning_seeds": 1}'""",
    r"--out DATA\b": "--out made/data",
    r"--processes 4 --run-dir D\b": f"--processes 2 --run-dir {RUN}/m-plus-adam/seed0",
    r"-node 4 -m mpadam train --run-dir D\b": f"-node 2 -m mpadam train --run-dir {RUN}/adamw/seed0",
    r"\bexport RUN OUT\b": f"export {RUN}/adamw/seed1 made/exported",
    r"--profile (?:PROFILE|profiles/\w+)": "--profile profiles/local --configfile toy.yaml --cores 2",
}
#: command -> where it is tried instead
ELSEWHERE = {
    r"^make ": "CI calls lint, test, reproduce, image-cpu",
    r"^apptainer ": "tests/cluster/test_container.py",
    r"--profile slurm\b": "tests/cluster/test_slurm.py; tests/workflow/test_slurm_profile.py, dry",
    r"--rdzv-backend": "needs several nodes; tests/unit/test_training_torchrun.py: one",
    r"--configfile studies/reference\.yaml": "tests/unit/test_from_reference_study.py: dry; its data are on the hub",
    r"results/long/data/manifest": "tests/workflow/test_reruns.py: a study goes on from its archive",
    r"studies/one-cell\.yaml": "tests/unit/test_plan_study.py, its plan; it wants a GPU",
    r"all_paper$": "CI; what it makes, tests/workflow/test_paper_items.py",
    r"diagnose capabilities": "CI, in all_paper; a minute at the page's options",
    r"from-reference - --data": "tests/unit/test_from_reference.py: it wants data cut as the command says",
    r"^mpadam probe report": "tests/unit/test_update_probe_records.py: it wants the file of a training",
    r"benchmarks/gpu_check\.py": "tests/unit/test_fp8_gpu_check.py: its CPU path",
}


def commands() -> list[tuple[str, str]]:
    """(page, command) of every indented or fenced line that starts with one of the programs."""
    found = []
    for page in PAGES:
        lines = re.findall(rf"^ *((?:{'|'.join(PROGRAMS)}) .+)$", (ROOT / page).read_text(), re.MULTILINE)
        found += [(page, line) for line in lines if _is_command(line)]
    return found


def _is_command(line: str) -> bool:
    """Not prose that happens to start with the name of a program."""
    return not re.search(r"[a-z]\.$|`", line)


def elsewhere(command: str) -> str | None:
    return next((where for pattern, where in ELSEWHERE.items() if re.search(pattern, command)), None)


def in_the_toy(command: str) -> str:
    for pattern, stand_in in STAND_INS.items():
        command = re.sub(pattern, stand_in, command)
    return command


RUN_HERE = [(page, command) for page, command in commands() if elsewhere(command) is None]

TEXT = {"capture_output": True, "text": True}


@pytest.fixture(scope="module")
def project(finished_toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A finished toy with the files that commands of the pages name."""
    toy = finished_toy.copy(tmp_path_factory.mktemp("docs") / "toy")
    for name in ("tests/unit/reference_commands", "benchmarks"):
        shutil.copytree(ROOT / name, toy.folder / name)
    return toy


def needs_a_shell(line: str) -> bool:
    """Another program, several commands, or several processes."""
    return not line.startswith("mpadam ") or re.search(r"[<>|&;$*`]|--processes", line) is not None


def in_a_shell(project: Toy, line: str) -> tuple[int, str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": programs, "PYTHONPATH": str(project.folder / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", line], cwd=project.folder, env=env, check=False, **TEXT)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As `OMP_NUM_THREADS=1` in a shell: on a loaded machine threads wait for each other in loops."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", dict.fromkeys(page for page, _ in RUN_HERE))
def test_the_commands_of_a_page_run(project: Toy, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    for line, command in ((in_the_toy(command), command) for at, command in RUN_HERE if at == page):
        code, output = in_a_shell(project, line) if needs_a_shell(line) else (main(shlex.split(line)[1:]), "")
        assert code == 0, f"{command}\n{line}\n{output}"


def test_what_is_tried_elsewhere_is_still_in_the_pages() -> None:
    assert len(RUN_HERE) > 25
    for pattern, where in ELSEWHERE.items():
        assert any(re.search(pattern, command) for _, command in commands()), f"no page has {pattern!r} any more"
        for file in re.findall(r"tests/\S+\.py", where):
            assert (ROOT / file).is_file(), file
