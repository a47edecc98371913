"""The workflow under variables and folders of a hostile shell: the same bytes (N25), no traceback without a HOME."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.workflow.toy import SNAKEMAKE, Toy

MPADAM = str(Path(sys.executable).parent / "mpadam")
MADE = ("tables", "figures", "pages", "claims.json", "index.html")
RUN = "runs/nano/1x/bf16-bf16/adamw/seed0"


def hostile(folder: Path) -> dict[str, str]:
    """Each of these changed something, or ended a command, once or in other projects."""
    (folder / "file").touch()
    nowhere = str(folder / "file" / "below")  # cannot be made, by root neither
    (folder / "shadow").mkdir()
    (folder / "shadow" / "sitecustomize.py").write_text("import random\nrandom.seed(3)\n")
    (folder / "matplotlibrc").write_text("font.size: 30\nbackend: TkAgg\nsavefig.dpi: 17\n")
    folders = ("HOME", "HF_HOME", "MPLCONFIGDIR", "TMPDIR", "TORCH_HOME", "TRITON_CACHE_DIR")
    folders += ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    return {
        **os.environ,
        **dict.fromkeys(folders, nowhere),
        **dict.fromkeys(("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "PYTHONSTARTUP"), nowhere),
        **{"MPLBACKEND": "module://matplotlib_inline.backend_inline", "MATPLOTLIBRC": str(folder / "matplotlibrc")},
        **{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "COLUMNS": "20", "TZ": "Asia/Tokyo"},
        **{"PYTHONHASHSEED": "7", "PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "2", "USE_TORCH": "0", "NO_COLOR": "1"},
        **{"OMP_NUM_THREADS": "7", "OMP_DYNAMIC": "true", "OMP_THREAD_LIMIT": "1", "MKL_CBWR": "COMPATIBLE"},
    }


def metrics(toy: Toy) -> list[dict[str, Any]]:
    lines = map(json.loads, (toy.results / RUN / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "tokens_per_s"} for line in lines]


def made(toy: Toy) -> list[Path]:
    """Files of `MADE`."""
    files = [path for path in toy.results.rglob("*") if path.is_file()]
    return [path for path in files if path.relative_to(toy.results).parts[0] in MADE]


def test_n25_nothing_inherited_changes_a_run_or_what_is_made_of_it(toy: Toy, finished_toy: Toy, tmp_path: Path) -> None:
    environment = {**hostile(tmp_path), "PYTHONPATH": f"{tmp_path / 'shadow'}{os.pathsep}{toy.folder / 'src'}"}
    for name in MADE:
        path = toy.results / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = tmp_path / "again"
    again.mkdir()
    shutil.copy(toy.results / RUN / "run.yaml", again)
    text = (again / "run.yaml").read_text()
    (again / "run.yaml").write_text(text.replace("data: ../", f"data: {toy.results / RUN}/../"))
    config = ["--config", "results/toy/study.yaml"]
    for command in (["train", "--run-dir", str(again)], *([name, *config] for name in ("aggregate", "claims", "site"))):
        done = subprocess.run(
            [MPADAM, *command], cwd=toy.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    compared = [path for path in made(finished_toy) if not path.name.startswith(".")]  # Snakemake's own dates
    assert len(compared) > 30
    for path in compared:
        assert (toy.results / path.relative_to(finished_toy.results)).read_bytes() == path.read_bytes(), path.name
    shutil.copy(again / "metrics.jsonl", toy.results / RUN)
    assert metrics(toy) == metrics(finished_toy)


def test_a_home_that_cannot_be_written_to_ends_no_workflow(toy: Toy, tmp_path: Path) -> None:
    """As on compute nodes; Snakemake kept a cache below it, and ended in a traceback."""
    environment = {**hostile(tmp_path), "PYTHONPATH": str(toy.folder / "src")}
    del environment["PYTHONWARNINGS"]  # Snakemake's own
    command = [SNAKEMAKE, "--profile", "profiles/local", "--configfile", "toy.yaml", "--dry-run"]
    done = subprocess.run(
        command, cwd=toy.folder, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in done.stdout + done.stderr
