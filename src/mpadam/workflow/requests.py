"""What the Snakefile asks of a study: keys from wildcards, inputs and parameters of its rules.

All decisions of the workflow are here, where they are tested; the rules only name files and commands.
"""

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mpadam.canonical import canonical_json
from mpadam.data import c4_hub
from mpadam.data.sources import source_identity, text_shards
from mpadam.data.text import TextShard
from mpadam.data.tokenizer import tokenizer_identity, tokenizer_receipt
from mpadam.plan.jobs import runs, trials
from mpadam.plan.model import CostModel
from mpadam.plan.needs import planned
from mpadam.presence import is_there
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey, grid_keys, run_keys, selection_key, trial_values, tuning_keys
from mpadam.study.load import read_yaml
from mpadam.study.paths import StudyPaths
from mpadam.study.spec import run_request, trial_request, tuning_identity
from mpadam.study.text import DataConfig
from mpadam.workflow.resources import host_memory_mb, limited, site_resources, training_resources

RUN = "{model}/{budget}x/{regime}/{optimizer}/seed{seed}"
TUNING = "{model}/{regime}/{optimizer}"
_ORIGIN = {"source", "path", "path_train", "path_validation", "revision", "downloads"}  # keys of `data`


@dataclass(frozen=True)
class Workflow:
    """A study as Snakemake sees it."""

    config: StudyConfig
    paths: StudyPaths

    # --- targets -----------------------------------------------------------------------------------------------------

    def view(self, view: str) -> "Workflow":
        """The part of the study that a target runs: "" what `all` does, "paper" what `all_paper` does."""
        return self._views["paper" if view else ""]

    @cached_property
    def _views(self) -> "dict[str, Workflow]":
        grids = [grid for grid in self.config.grids if grid.target == "all"]
        return {"paper": self, "": replace(self, config=self.config.model_copy(update={"grids": grids}))}

    def for_paper(self, files: list[str]) -> Callable[[Any], list[str]]:
        """An input function: these files for what `all_paper` makes, none for what `all` makes."""
        return lambda wildcards: files if wildcards.view else []

    def view_name(self, wildcards: Any) -> str:
        """`view` of wildcards, without the slash that makes it a folder."""
        return str(wildcards.view).rstrip("/")

    def summaries(self) -> list[str]:
        return list(self._summaries)

    @cached_property
    def _summaries(self) -> list[str]:
        return [str(self.paths.run(key) / "summary.json") for key in run_keys(self.config)]

    def summaries_of_view(self, wildcards: Any) -> list[str]:
        return self.view(self.view_name(wildcards)).summaries()

    def selections_of_view(self, wildcards: Any) -> list[str]:
        return self.view(self.view_name(wildcards)).selections()

    def selections(self) -> list[str]:
        """The selected values of every tuning that searches."""
        return list(self._selections)

    @cached_property
    def _selections(self) -> list[str]:
        return [str(self.paths.selected(key)) for key in self.tunings()]

    def searches(self, key: TuningKey) -> bool:
        return bool(tuning_identity(self.config, key))

    def tunings(self) -> list[TuningKey]:
        """Every tuning that searches."""
        return [key for key in tuning_keys(self.config) if self.searches(key)]

    # --- inputs of rules, from wildcards -----------------------------------------------------------------------------

    def selected_of_run(self, wildcards: Any) -> list[str]:
        """The selected.yaml a run's specification needs: one, or none when nothing is searched."""
        return self.selected_of([_run_key(wildcards)])

    def selected_of(self, keys: list[RunKey]) -> list[str]:
        """The selected.yaml that the specifications of these runs need, each once."""
        sources = dict.fromkeys(selection_key(self.config, key) for key in keys)
        return [str(self.paths.selected(source)) for source in sources if self.searches(source)]

    def selected_for_each(self, keys: list[RunKey]) -> list[str]:
        """The same, one for each run, `-` where nothing is searched."""
        return [next(iter(self.selected_of([key])), "-") for key in keys]

    def trial_summaries(self, wildcards: Any) -> list[str]:
        return self.trial_files(_tuning_key(wildcards), "summary.json")

    def trial_files(self, key: TuningKey, name: str) -> list[str]:
        """File `name` of every trial of a tuning; its folder where `name` is empty."""
        return [str(self.paths.trial(key, k) / name) for k in range(len(trial_values(self.config, key.optimizer)))]

    def trial_folders(self, wildcards: Any) -> list[str]:
        """The folder of every trial of a tuning, without the further ones."""
        return self.trial_files(_tuning_key(wildcards), "")

    def extension(self, wildcards: Any) -> list[str]:
        """The record of a tuning's further trials, where the study allows any."""
        return [str(self.paths.extension(_tuning_key(wildcards)))] if self.config.tuning.extend else []

    def further_folders(self, wildcards: Any) -> list[Path]:
        """The folders of the further trials that this record names, if it is there."""
        key = _tuning_key(wildcards)
        path = self.paths.extension(key)
        if not is_there(path):
            return []
        record = read_yaml(path)
        return [self.paths.trial(key, record["first"] + k) for k in range(len(record["trials"]))]

    # --- the study's data --------------------------------------------------------------------------------------------

    @cached_property
    def data(self) -> DataConfig:
        """The section `data`, with the shards that the budgets need."""
        return planned(self.config)

    @cached_property
    def _shards(self) -> dict[str, TextShard]:
        return {shard.name: shard for shard in text_shards(self.data)}

    def data_inputs(self) -> list[str]:
        """What the manifest is made of, where each shard is a job; else what has to be fetched before the one job."""
        if not self.data.by_shard:
            return self.tokenizer_inputs()
        return [self._origin(), *(self._shard_manifest(name) for name in self._shards)]

    def data_stage(self) -> str:
        """Which part of the work the job of the manifest does: the last alone, where each shard is a job."""
        return "--assemble" if self.data.by_shard else ""

    def tokenizer_inputs(self) -> list[str]:
        """Receipts of what the tokenizer is made of."""
        if self.config.tokenizer.source == "hub":
            return [self.tokenizer_receipt()]
        learns = self.config.tokenizer.source == "bpe"
        return [receipt for name in self._shards for receipt in self._receipts(name)] if learns else []

    def shard_inputs(self, wildcards: Any) -> list[str]:
        """What a shard is tokenized with: the tokenizer, its own text, and the validation documents to leave out."""
        held_out = self._held_out if self._shards[wildcards.shard].split == "train" else []
        return [self._origin(), *self._receipts(wildcards.shard), *held_out]

    @cached_property
    def _held_out(self) -> list[str]:
        return [self._shard_manifest(name) for name, shard in self._shards.items() if shard.split == "validation"]

    def tokenizer_receipt(self) -> str:
        """Where the receipt of a fetched tokenizer is; a name that no rule asks for where none is fetched."""
        fetched = self.config.tokenizer.source == "hub"
        return str(tokenizer_receipt(self.data, self.config.tokenizer)) if fetched else "no-tokenizer"

    def shard_receipt(self) -> str:
        """Where the receipts of fetched shards are, with a wildcard for the shard's name."""
        return str(c4_hub.receipt_path(self.data, "{shard}"))

    def _receipts(self, name: str) -> list[str]:
        return [str(c4_hub.receipt_path(self.data, name))] if self.data.source == "c4_hub" else []

    def _origin(self) -> str:
        return str(self.paths.data / "tokenizer" / "origin.json")

    def _shard_manifest(self, name: str) -> str:
        return str(self.paths.data / "tokens" / name / "shard.json")

    def shared_jobs(self) -> dict[str, list[RunKey]]:
        """Name -> runs of each job that trains several, one after another (`grids: runs_per_job`).

        A run belongs to the first grid that names it, whatever the target: what trains it does not depend on that.
        """
        jobs: dict[str, list[RunKey]] = {}
        claimed: set[RunKey] = set()
        for grid in self.config.grids:
            own = [key for key in grid_keys(self.config, grid) if key not in claimed]
            claimed.update(own)
            if grid.runs_per_job > 1:
                parts = [own[k : k + grid.runs_per_job] for k in range(0, len(own), grid.runs_per_job)]
                jobs |= {f"runs_{grid.name}_{number}": part for number, part in enumerate(parts)}
        return jobs

    def run_files(self, keys: list[RunKey], name: str) -> list[str]:
        """File `name` of each of these runs; its folder where `name` is empty."""
        return [str(self.paths.run(key) / name) for key in keys]

    # --- resources ---------------------------------------------------------------------------------------------------

    def training_resources(self, key: RunKey | TuningKey | None = None) -> dict[str, Any]:
        """What a job that trains asks for; key: the run or tuning of a rule without wildcards."""
        key_of = (lambda wildcards: key) if key else _key
        return training_resources(self.config, key_of, self.memory_mb_of)

    def shared_resources(self, keys: list[RunKey]) -> dict[str, Any]:
        """What a job that trains these runs one after another asks for: the largest one's, and the time of all."""
        asked = self.training_resources(max(keys, key=lambda key: self.memory_mb_of(key.model)))
        return self._lasting(asked, times=len(keys))

    def extension_resources(self) -> dict[str, Any]:
        """What a job that makes the further trials of a tuning asks for: a training's, and the time of all of them."""
        tuning = self.config.tuning
        counted = 1 if tuning.trials_per_job == 1 else tuning.trials
        return self._lasting(self.training_resources(), times=tuning.extend, over=counted)

    def _lasting(self, asked: dict[str, Any], *, times: int, over: int = 1) -> dict[str, Any]:
        """These resources, and `times` / `over` as many minutes."""
        minutes = asked["runtime"]
        return {
            **asked,
            "runtime": lambda wildcards, attempt: limited(self.config, -(-times * minutes(wildcards, attempt) // over)),
        }

    def expected_seconds(self, files: Iterable[str]) -> float:
        """Seconds of the trainings that write these summaries, by the plan's assumptions; 0 for other files."""
        return sum(self._seconds.get(file, 0.0) for file in files)

    @cached_property
    def _seconds(self) -> dict[str, float]:
        model = CostModel(self.config)
        trainings = [*runs(self.config), *trials(self.config)]
        return {str(each.folder(self.paths) / "summary.json"): model.seconds(each) for each in trainings}

    def measuring_threads(self, wildcards: Any) -> int:
        return self.config.measure.step_time.threads if wildcards.kind == "step-time" else 1

    def measuring_resources(self) -> dict[str, Any]:
        """What a measurement asks for: one GPU of the study's kind, where optimizer steps are timed on one.

        Functions of wildcards; Snakemake leaves out what is None.
        """

        def asked(name: str) -> Callable[[Any], Any]:
            return lambda wildcards: (timed if wildcards.kind == "step-time" else other).get(name)

        other = {"mem_mb": 4000, "runtime": 60, **self.site_resources()}
        timed = other
        if self.config.measure.step_time.device == "cuda":
            gpu = {"mem_mb": 16_000, "gpu": 1, "nodes": 1, "gpu_model": self.config.cluster.gpu_model}
            timed = {**other, **gpu, **site_resources(self.config, gpu=True)}
        return {name: asked(name) for name in timed}

    def site_resources(self) -> dict[str, Any]:
        """Account, partition and the like of a job that needs no GPU."""
        return site_resources(self.config)

    def memory_mb_of(self, model: str) -> int:
        """Host memory of a training, in MB, at most.

        On a CPU: interpreter and libraries, 24 bytes per parameter (weight, copies, gradient, states), and what a
        forward pass keeps: three float32 arrays of logits and about 40 values per position, layer and hidden unit.
        """
        if self.config.training.device == "cuda":
            return host_memory_mb(self.config, model)
        vocab_size = self.config.tokenizer.vocab_size or 32_000
        shape = self.config.models[model]
        positions = self.config.micro_batch_size(model) * self.config.data.sequence_length
        activations = positions * (12 * vocab_size + 160 * shape.layers * shape.hidden_size)
        return 1000 + round((24 * shape.parameters(vocab_size) + activations) / 1e6)

    # --- parameters of rules: canonical text, so that only a change of meaning is a change ---------------------------

    def study_text(self, wildcards: Any) -> str:
        """The resolved configuration of what a target runs, but for where its jobs run."""
        config = self.view(self.view_name(wildcards)).config
        return canonical_json(config.model_dump(mode="json", exclude={"container", "cluster"}))

    def source_text(self) -> str:
        """What text and tokenizer are made of: names and sizes, commits or versions, not dates.

        Raises ValueError, OSError if a folder is not there or the text cannot supply the budgets.
        """
        tokenizer = tokenizer_identity(self.config.tokenizer)
        return canonical_json({"source": source_identity(self.data), "tokenizer": tokenizer})

    def data_text(self) -> str:
        """What decides the token files."""
        return self._sections(exclude={"epochs", "downloads_at_once", "shard_jobs"})

    def shard_text(self) -> str:
        """What decides the token files of a shard, besides the shard itself: not how many there are, nor sequences."""
        return canonical_json({"data": self.data.model_dump(mode="json", include=_ORIGIN)})

    def shard_facts(self, wildcards: Any) -> str:
        """What is known of a shard's text before it is read."""
        return canonical_json(dict(self._shards[wildcards.shard].facts))

    def tokenizer_text(self) -> str:
        """What decides the tokenizer: its section, and the text where it learns from it."""
        learns = self.config.tokenizer.source == "bpe"
        return self._sections(include={*_ORIGIN, "train_shards"} if learns else _ORIGIN)

    def _sections(self, *, include: set[str] | None = None, exclude: set[str] | None = None) -> str:
        data = self.data.model_dump(mode="json", include=include, exclude=exclude)
        return canonical_json({"data": data, "tokenizer": self.config.tokenizer.model_dump(mode="json")})

    def run_text(self, wildcards: Any) -> str:
        return self.run_texts([_run_key(wildcards)])[0]

    def run_texts(self, keys: list[RunKey]) -> list[str]:
        return [canonical_json(run_request(self.config, key)) for key in keys]

    def trial_text(self, wildcards: Any) -> str:
        return canonical_json(trial_request(self.config, _tuning_key(wildcards), int(wildcards.trial)))

    def trial_texts(self, key: TuningKey) -> list[str]:
        trials = range(len(trial_values(self.config, key.optimizer)))
        return [canonical_json(trial_request(self.config, key, trial)) for trial in trials]

    def tuning_text(self, wildcards: Any) -> str:
        return canonical_json(tuning_identity(self.config, _tuning_key(wildcards)))


def _key(wildcards: Any) -> RunKey | TuningKey:
    """The run of a job, or the tuning of one that trains a trial."""
    return _run_key(wildcards) if hasattr(wildcards, "seed") else _tuning_key(wildcards)


def _run_key(wildcards: Any) -> RunKey:
    return RunKey(wildcards.model, int(wildcards.budget), wildcards.regime, wildcards.optimizer, int(wildcards.seed))


def _tuning_key(wildcards: Any) -> TuningKey:
    return TuningKey(wildcards.model, wildcards.regime, wildcards.optimizer)


def rule_names(names: Iterable[str]) -> dict[str, str]:
    """Name -> name of its rule, in letters, digits and `_`; two that would be called the same get a number."""
    rules: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name)
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        taken = set(rules.values())
        rules[name] = next(rule for rule in itertools.chain([plain], numbered) if rule not in taken)
    return rules
