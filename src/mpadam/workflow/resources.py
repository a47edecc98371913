"""What the jobs of the workflow ask Slurm for, as Snakemake's resources.

training_resources(...) are the keyword arguments of a `resources:` directive. They stand in the rules and not in a
profile, so that `--default-resources` on the command line erases none of them. Values that depend on the model or on
the attempt are functions of (wildcards, attempt); what a site decides (account, partition, ...) is in the
configuration's `cluster` section.

The plugin turns them into sbatch's flags: runtime -t, mem_mb --mem, gpu and gpu_model --gpus=h100:1, nodes --nodes,
slurm_account -A, slurm_partition -p, constraint -C, qos --qos; threads (of the rule) become --cpus-per-task.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from mpadam.plan.model import CostModel, gpus, runtime_minutes
from mpadam.study.config import StudyConfig
from mpadam.study.grid import RunKey, TuningKey

#: Slurm sends this much ahead of the limit a signal to the job's step: for a job whose budget was not kept.
SIGNAL_AHEAD_SECONDS = 120
#: A job that was refused memory, or killed for it, gets half as much again with each further attempt.
MEMORY_GROWTH_PER_ATTEMPT = 0.5
#: Option of `mpadam train` in a job, in a rule's shell line: it stops by itself a tenth of the time limit and a minute
#: ahead of it, at most 16 minutes. The start of the job, the step or validation at hand, and saving have to fit in.
STOP_AFTER = (
    "--stop-after-minutes "
    "$(( {resources.runtime} - ({resources.runtime} / 10 < 15 ? {resources.runtime} / 10 : 15) - 1 ))"
)


def training_resources(
    config: StudyConfig, key: Callable[[Any], RunKey | TuningKey], memory_mb: Callable[[str], int]
) -> dict[str, Any]:
    """Resources of a rule that trains.

    key: the run or tuning of a job, from its wildcards. memory_mb: host memory of a model's training, at most.
    """
    memory_of = cache(memory_mb)
    minutes_of = cache(lambda key, attempt: limited(config, runtime_minutes(config, key, attempt)))
    on_gpu = config.training.device == "cuda"
    asked: dict[str, Any] = {
        "mem_mb": lambda wildcards, attempt: grown(memory_of(key(wildcards).model), attempt),
        "runtime": lambda wildcards, attempt: minutes_of(key(wildcards), attempt),
        "launcher": lambda wildcards: launch(gpus(config, key(wildcards).model)),
    }
    if on_gpu:
        asked |= {"gpu": lambda wildcards: gpus(config, key(wildcards).model), "nodes": 1} | (
            {"gpu_model": model} if (model := config.cluster.gpu_model) else {}
        )
    return {**asked, **site_resources(config, gpu=on_gpu)}


def site_resources(config: StudyConfig, *, gpu: bool = False) -> dict[str, Any]:
    """What the site decides: account, partition, constraint, QOS and further flags of a job; nothing that is not set.

    gpu: whether the job uses GPUs. Constraint and the signal are for those jobs and for trainings on CPUs alike.
    """
    cluster = config.cluster
    partition = (cluster.gpu_partition if gpu else None) or cluster.partition
    asked = {
        "slurm_account": cluster.account,
        "slurm_partition": partition,
        "constraint": cluster.constraint if gpu else None,
        "qos": cluster.qos,
    }
    extra = f"--signal=USR1@{SIGNAL_AHEAD_SECONDS} {cluster.sbatch or ''}".strip()
    return {name: value for name, value in asked.items() if value is not None} | {"slurm_extra": extra}


def grown(memory_mb: int, attempt: int) -> int:
    return round(memory_mb * (1 + MEMORY_GROWTH_PER_ATTEMPT * (attempt - 1)))


def limited(config: StudyConfig, minutes: int) -> int:
    """A time limit that the site accepts: a longer job stops ahead of it and its next attempt goes on from there."""
    longest = config.cluster.max_hours
    return minutes if longest is None else max(1, min(minutes, int(60 * longest)))


def launch(gpus: int) -> str:
    """How a training's processes are started: one a GPU, in one task on one node."""
    return "mpadam" if gpus <= 1 else f"torchrun --standalone --nproc-per-node {gpus} -m mpadam"


def host_memory_mb(config: StudyConfig, model: str) -> int:
    """Host memory of a training on GPUs, in MB, at most: libraries and CUDA, and the float32 draw of the weights or a
    state on its way to or from disk, 12 bytes per parameter, in each process."""
    shape = CostModel(config).shape(model)
    return max(1, gpus(config, model)) * (6000 + round(12 * shape.parameters / 1e6))
