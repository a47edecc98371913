"""Every flag of the reference implementation's README, and what becomes of it. Data only.

The trap of these flags (docs/algorithm.md, "Names of rates"): the suffix `_m` is the *additive* ("mantissa") branch and
`_e` the *multiplicative* ("exponent") one, and the rate without a suffix, `--lr`, is the additive one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "float", "text", "bool", "switch"]
BF16_SCRIPT = "main.py"
FP8_SCRIPT = "train_fp8_true_master.py"
SCRIPTS = (BF16_SCRIPT, FP8_SCRIPT)


@dataclass(frozen=True)
class Flag:
    """kind: a switch has no value, a bool is true or false.

    to: the key of the study that it sets, `note` how; empty where it sets none, and then `note` is the reason.
    default: what is taken where it is not given, for numbers that decide the result: the README names no defaults, so
        these are ours, and the command says that it took them.
    required: it has no default that could be taken for what was meant.
    script: the only program that takes it; None: both.
    """

    name: str
    kind: Kind
    to: str
    note: str
    default: str | int | float | None = None
    required: bool = False
    script: str | None = None


# fmt: off
#: Sets a key of the study.
MAPPED = (
    Flag("model_config", "text", "models", "llama_<size>.json by name, or a file that exists", required=True),
    Flag("tokenizer", "text", "tokenizer", "a folder with a copy of it", "hf-internal-testing/llama-tokenizer"),
    Flag("max_length", "int", "data.sequence_length", "positions of a sequence", 256),
    Flag("batch_size", "int", "training.micro_batch_size", "sequences a forward pass on one GPU", required=True),
    Flag("total_batch_size", "int", "training.global_batch_size", "not given: batch_size times GPUs"),
    Flag("num_training_steps", "int", "budgets", "steps of the run; a multiple of 1x is a budget", required=True),
    Flag("optimizer", "text", "optimizers", "m_adam alone: m-plus-adam", required=True),
    Flag("dtype", "text", "regimes", "bfloat16 alone: of weights and compute where no FP8 flag says otherwise"),
    Flag("lr", "float", "optimizers.values.lr", "eta_a, the additive rate", required=True),
    Flag("m_adam_lr_e", "float", "optimizers.values.lr_mult", "eta_m, the multiplicative rate", required=True),
    Flag("m_adam_beta1", "float", "optimizers.values.beta1", "of the first moment", 0.87),
    Flag("m_adam_beta2", "float", "optimizers.values.beta2", "of both second moments", 0.98),
    Flag("m_adam_eps", "float", "optimizers.values.eps", "of both denominators", 1e-20),
    Flag("m_adam_weight_decay_m", "float", "optimizers.values.weight_decay", "of the additive branch", 0.1),
    Flag("m_adam_weight_decay_e", "float", "optimizers.values.weight_decay_mult", "of the multiplicative branch", 0.01),
    Flag("max_grad_norm", "float", "training.clip_norm", "0: no clipping", 1.0),
    Flag("scheduler", "text", "training.schedule.kind", "additive", "linear"),
    Flag("warmup_steps", "int", "training.schedule.warmup", "additive; as a share of the steps", 0),
    Flag("min_lr_ratio", "float", "training.schedule.min_ratio", "additive", 0.0),
    Flag("m_adam_sched_e", "text", "training.schedule_mult.kind", "multiplicative", "logcosine"),
    Flag("m_adam_warmup_steps_e", "int", "training.schedule_mult.warmup", "multiplicative; as a share of the steps", 0),
    Flag("m_adam_min_lr_ratio_e", "float", "training.schedule_mult.min_ratio", "multiplicative", 0.0),
    Flag("m_adam_logcosine_alpha_e", "float", "training.schedule_mult.alpha", "multiplicative", 3.0),
    Flag("m_adam_tie_e_to_m", "bool", "training.schedule_mult", "true: null, it follows the additive schedule"),
    Flag("fp8_true_master", "switch", "regimes.masters", "weights are kept in FP8", script=FP8_SCRIPT),
    Flag("fp8_format", "text", "regimes.masters", "e5m2: fp8, e4m3: fp8e4m3", "e5m2", script=FP8_SCRIPT),
    Flag("fp8_block_size", "int", "regimes.block_size", "weights that share a scale", 256, script=FP8_SCRIPT),
    Flag("fp8_pow2_scale", "switch", "regimes.power_of_two_scale", "of the blocks", script=FP8_SCRIPT),
    Flag("fp8_adam_state_dtype", "text", "training.state_dtype", "of the moments", "bfloat16", script=FP8_SCRIPT),
    Flag("te_fp8_gemm", "switch", "regimes.compute", "projections are multiplied in FP8", script=FP8_SCRIPT),
    Flag("te_recipe", "text", "regimes.recipe", "hybrid_delayed", "hybrid_delayed", script=FP8_SCRIPT),
    Flag("te_amax_history", "int", "regimes.amax_history", "steps that a scale looks back", 16, script=FP8_SCRIPT),
    Flag("te_margin", "int", "regimes.margin", "powers of two left free", 0, script=FP8_SCRIPT),
    Flag("te_fp8_eval", "switch", "regimes.fp8_eval", "evaluation in FP8 too", script=FP8_SCRIPT),
    Flag("eval_every", "int", "evaluation.every", "steps"),
    Flag("num_eval_tokens", "int", "data.validation_tokens", "of the fixed set; a run is judged on half", 10_000_000),
    Flag("save_every", "int", "training.checkpoint_every", "steps"),
    Flag("plot_every", "int", "training.plot_every", "steps between pictures of the loss"),
    Flag("check_nonfinite_every", "int", "training.check_nonfinite_every", "steps"),
    Flag("seed", "int", "seeds", "of initialisation, data order and rounding", 0),
    Flag("name", "text", "study", "in lower case, with hyphens"),
    Flag("run_name", "text", "study", "in lower case, with hyphens"),
    Flag("wandb_project", "text", "wandb.project", "nothing is sent unless wandb.mode is changed"),
    Flag("wandb_entity", "text", "wandb.entity", "YOUR_WANDB_ENTITY is nobody"),
)

#: Nothing to set, because a run is so anyway; another value than the one that says so is refused.
CHECKED = (
    Flag("scheduler_effective_training_steps", "int", "", "the additive schedule ends with the run: 0, or its steps"),
    Flag("m_adam_total_steps_e", "int", "", "the multiplicative schedule ends with the run: its steps"),
    Flag("m_adam_norm_type", "text", "", "none, which the README does not explain; forms of the rule are optimizers"),
)

#: Not used, and why not.
UNMAPPED = (
    Flag("local_path_train", "text", "", "text is named by data.source and prepared once for all runs (mpadam data)"),
    Flag("local_path_val", "text", "", "as local_path_train; validation text is never training text"),
    Flag("save_dir", "text", "", "a run's folder follows from its labels"),
    Flag("out_dir", "text", "", "a run's folder follows from its labels"),
    Flag("workers", "int", "", "tokens are read from memory maps: there are no loader processes"),
    Flag("use_flash_attention", "switch", "", "attention: sdpa runs torch's FlashAttention kernel where there is one"),
    Flag("use_liger_kernel", "switch", "", "speed alone; head and loss are computed together here anyway"),
    Flag("wandb_tag", "text", "", "labels of the run say as much: model, budget, regime, optimizer, seed"),
    Flag("wandb_name", "text", "", "a run's id follows from its labels"),
)
# fmt: on

FLAGS: Mapping[str, Flag] = {flag.name: flag for flag in (*MAPPED, *CHECKED, *UNMAPPED)}

#: torchrun's own flags. Only the number of processes means anything here; the rest is said again at the launch.
LAUNCHER_FLAGS: Mapping[str, Flag] = {
    flag.name: flag
    for flag in (
        Flag("nproc_per_node", "int", "", "GPUs; the launch line says it again"),
        Flag("standalone", "switch", "", "one node"),
        Flag("nnodes", "int", "", "1 alone"),
        Flag("master_addr", "text", "", "found by the launcher"),
        Flag("master_port", "int", "", "found by the launcher: a fixed one collides"),
    )
}
