"""`mpadam plan`: jobs, FLOPs, positions, gigabytes and GPU-hours of a study, by stated assumptions and from its
finished runs.

    mpadam plan --config config.yaml --config studies/smoke.yaml --results results
"""

from mpadam.arguments import CONFIG, RESULTS, Namespace, argument
from mpadam.exits import EXIT_BAD_INPUT

ARGUMENTS = (
    CONFIG,
    RESULTS,
    argument("--gpu", help="the GPU to plan for: h100, h200 or a100 (default: by cluster.gpu_model)"),
    argument("--json", action="store_true", help="all numbers, unrounded, as JSON"),
)


def run(args: Namespace) -> int:
    """Print the plan; 2 if the text cannot supply a budget."""
    import json
    import sys

    from mpadam.plan.assumptions import GPUS
    from mpadam.plan.plan import make_plan
    from mpadam.plan.report import to_text
    from mpadam.study.load import load_study

    if args.gpu is not None and args.gpu not in GPUS:
        raise ValueError(f"--gpu {args.gpu}: not one of {', '.join(GPUS)}; write e.g.  --gpu h100")
    plan = make_plan(load_study(args.config), args.results, gpu=args.gpu)
    print(json.dumps(plan.as_json(), indent=2, allow_nan=False) if args.json else to_text(plan), end="")
    for problem in plan.problems:
        print(f"mpadam plan: {problem}", file=sys.stderr)
    return EXIT_BAD_INPUT if plan.problems else 0
