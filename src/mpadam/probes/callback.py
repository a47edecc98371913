"""`mpadam.UpdateProbeCallback`: an `UpdateProbe` in a Hugging Face Trainer."""

from typing import Any

from mpadam.extras import require

require("hf")

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # noqa: E402

from mpadam.probes.update_probe import UpdateProbe  # noqa: E402


class UpdateProbeCallback(TrainerCallback):
    """Probes the Trainer's optimizer. Takes the options of `UpdateProbe`; steps are the Trainer's own.

    Trainer(..., callbacks=[UpdateProbeCallback(out="updates.jsonl")])
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.probe: UpdateProbe | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start at the step from which the training goes on."""
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        self.probe = UpdateProbe(optimizer, kwargs["model"], step=state.global_step, **self.options)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.probe is not None:
            self.probe.close()
