"""`mpadam evaluate`: evaluate the final weights of a run on its validation tokens.

mpadam evaluate --run-dir results/smoke/runs/200k/1x/bf16-bf16/m-plus-adam/seed0 --batch-size 8
"""

from pathlib import Path

from mpadam.arguments import Namespace, argument

ARGUMENTS = (
    argument("--run-dir", type=Path, required=True, metavar="D", help="run folder"),
    argument("--batch-size", type=int, metavar="N", help="sequences a forward pass (default: as in training)"),
)


def run(args: Namespace) -> int:
    if args.batch_size is not None and args.batch_size < 1:
        raise ValueError(f"--batch-size {args.batch_size}: give at least 1")
    from mpadam.training.export import evaluate_folder

    result = evaluate_folder(args.run_dir, batch_size=args.batch_size)
    print(f"loss {result.loss:.6f}  perplexity {result.perplexity:.4f}  tokens {result.tokens}")
    return 0
