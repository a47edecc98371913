"""A toy copy of the project: the real Snakefile, rules, profiles and package on a few made-up documents.

The package is copied too and comes first on the path, so that a test may edit code as a user would.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("Snakefile", "workflow", "profiles", "studies", "config.yaml", "src")
SNAKEMAKE = str(Path(sys.executable).parent / "snakemake")

OVERLAY = """\
study: toy
data: {source: c4_folder, path: c4, revision: null, sequences: pack, sequence_length: 32, validation_tokens: 2000, epochs: 8}
tokenizer: {source: bpe, vocab_size: 300, repo: null, revision: null}
models:
  nano: {hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, steps_1x: 6}
budgets: [1]
seeds: [0, 1]
optimizers:
  adamw: {values: {lr: 8e-5, beta1: 0.9}, search: {lr: null}}
  m-plus-adam: {search: {lr: [1e-3, 3e-3], lr_mult: [3e-3]}}
training:
  {global_batch_size: 4, micro_batch_size: 4, device: cpu, threads: 1, compile: false,
   log_every: 2, checkpoint_every: 3}
evaluation: {every: null, batch_size: 8}
tuning: {mode: search, trials: 2, steps_fraction: 0.5, trials_per_job: all}
grids:
  - {name: toy, models: [nano], regimes: [bf16-bf16], optimizers: [adamw, m-plus-adam]}
"""  # noqa: E501


@dataclass(frozen=True)
class Toy:
    """A toy project on disk."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results" / "toy"

    def snakemake(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the toy study, or what `arguments` name after --configfile."""
        study = () if "--configfile" in arguments else ("--configfile", "toy.yaml")
        return self.command("--profile", "profiles/local", *study, "--cores", "2", *arguments, cwd=cwd)

    def command(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the workflow as a user would, one thread a process, with an empty home."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "HOME": str(home), "OMP_NUM_THREADS": "1"}
        env.pop("XDG_CONFIG_HOME", None)
        return subprocess.run(
            [SNAKEMAKE, *arguments], cwd=cwd or self.folder, env=env, capture_output=True, text=True, check=False
        )

    def planned(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a run would do now."""
        return self.done("--dry-run", *arguments)

    def done(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a run of the toy study had done when it ended well."""
        done = self.snakemake(*arguments)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        if "Nothing to be done" in output:
            return {}
        table = output.split("Job stats:")[-1]
        return {rule: int(n) for rule, n in re.findall(r"^([a-z]\w*) +(\d+)$", table, re.MULTILINE) if rule != "total"}

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name}: {text.count(old)} times {old!r}"
        path.write_text(text.replace(old, new))

    def copy(self, folder: Path) -> Toy:
        """An own copy, dates included, for a test that changes things."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Toy(folder)


def make_toy(folder: Path) -> Toy:
    """The project in `folder`, with a small C4 of made-up documents; nothing has run yet."""
    folder.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        (shutil.copytree(source, folder / name, ignore=ignore) if source.is_dir() else shutil.copy(source, folder))
    (folder / "toy.yaml").write_text(OVERLAY)
    write_c4(folder / "c4")
    return Toy(folder)


def write_c4(folder: Path) -> None:
    """Two training shards and one validation shard in C4's layout."""
    stream = random.Random(0)
    words = ["".join(stream.choices("abcdefghijklmnopqrstuvwxyz", k=stream.randint(2, 9))) for _ in range(200)]
    (folder / "en").mkdir(parents=True)
    for name, documents in {
        "c4-train.00000-of-01024": 40,
        "c4-train.00001-of-01024": 40,
        "c4-validation.00000-of-00008": 30,
    }.items():
        with gzip.open(folder / "en" / f"{name}.json.gz", "wt", encoding="utf-8") as file:
            for index in range(documents):
                text = " ".join(stream.choices(words, k=stream.randint(20, 80)))
                row = {"text": text, "url": f"https://example.org/{name}/{index}", "timestamp": "2019-04-25T12:00:00Z"}
                file.write(json.dumps(row) + "\n")
