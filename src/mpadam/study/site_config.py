"""Sections of the configuration that change no number of a run: Weights & Biases, container, cluster."""

from typing import Annotated, Literal

from pydantic import Field

from mpadam.study.section import PathText, Section


class WandbConfig(Section):
    """Weights & Biases, which shows the metrics of running trainings and changes none of them (docs/training.md)."""

    mode: Literal["disabled", "offline", "online"] = Field(
        "disabled",
        description="`offline` writes into the run folder, for `wandb sync` later; `online` sends while it trains "
        "and needs network access and a key. Both need the package wandb.",
    )
    project: str = Field("mpadam", description="Project that the runs appear in.")
    entity: str | None = Field(
        None, description="User or team that owns the project; `null` means the default of the account."
    )


class ContainerConfig(Section):
    """The Apptainer image that jobs run in. It is not part of a run's identity (docs/cluster.md)."""

    image: PathText | None = Field(
        None,
        description="Path of an image file, or an address such as `docker://...`; `null` runs jobs in the "
        "environment that runs Snakemake.",
    )
    binds: list[PathText] = Field(
        default_factory=list,
        description="Further folders outside the repository that jobs need. Those of data, tokenizer and results "
        "are bound without being listed.",
    )


class ClusterConfig(Section):
    """What a site decides about Slurm jobs (profiles/slurm/cluster.yaml). `null` passes no such option to sbatch."""

    account: str | None = Field(None, description="Account that jobs are charged to: `-A` of sbatch.")
    partition: str | None = Field(None, description="Partition of jobs: `-p` of sbatch.")
    gpu_partition: str | None = Field(
        None, description="Partition of jobs that use GPUs; `null` means `partition` for them too."
    )
    gpu_model: str | None = Field(
        "h100",
        description="Name of the GPU as Slurm knows it, as in `--gpus=h100:1`; time limits are estimated for it. "
        "`null` asks for any GPU, with the time limits of an A100.",
    )
    constraint: str | None = Field(None, description="Node features that jobs with GPUs require: `-C` of sbatch.")
    qos: str | None = Field(None, description="Quality of service: `--qos` of sbatch.")
    max_hours: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Longest time limit that the partition accepts, in hours. A training that needs longer stops in "
        "time and continues in its next attempt. `null` sets no limit.",
    )
    sbatch: str | None = Field(None, description="Further options of sbatch, for example `--mail-type=FAIL`.")
