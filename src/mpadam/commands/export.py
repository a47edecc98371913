"""`mpadam export`: write weights, configuration and tokenizer of a completed run for transformers' from_pretrained.

mpadam export results/smoke/runs/200k/1x/bf16-bf16/m-plus-adam/seed0 exported/m-plus-adam
"""

from pathlib import Path

from mpadam.arguments import Namespace, argument

ARGUMENTS = (
    argument("run_dir", type=Path, metavar="RUN", help="run folder"),
    argument("out", type=Path, metavar="OUT", help="new folder"),
)


def run(args: Namespace) -> int:
    from mpadam.training.export import export_run

    export_run(args.run_dir, args.out)
    print(f"{args.out}: load it with transformers.LlamaForCausalLM.from_pretrained({str(args.out)!r})")
    return 0
