"""`mpadam plan`: jobs, FLOPs, positions, gigabytes and GPU-hours of a study, by stated assumptions and from its
finished runs.

    mpadam plan one-gpu --price-per-gpu-hour 2.5
"""

from mpadam.arguments import CONFIG, RESULTS, Namespace, argument, config_of
from mpadam.exits import EXIT_BAD_INPUT

ARGUMENTS = (
    CONFIG,
    RESULTS,
    argument("--gpu", help="the GPU to plan for: h100, h200 or a100 (default: by cluster.gpu_model)"),
    argument(
        "--price-per-gpu-hour",
        type=float,
        metavar="PRICE",
        help="what a GPU costs per hour, in any currency: the plan then has prices too",
    ),
    argument("--json", action="store_true", help="all numbers, unrounded, as JSON"),
)


def run(args: Namespace) -> int:
    """2 if the text cannot supply a budget."""
    import json
    import math
    import sys

    from mpadam.plan.assumptions import GPUS
    from mpadam.plan.plan import make_plan
    from mpadam.plan.report import to_text

    if args.gpu is not None and args.gpu not in GPUS:
        raise ValueError(f"--gpu {args.gpu}: not one of {', '.join(GPUS)}; write e.g.  --gpu h100")
    price = args.price_per_gpu_hour
    if price is not None and not 0 < price < math.inf:
        raise ValueError(f"--price-per-gpu-hour {price}: give a number above 0, e.g.  --price-per-gpu-hour 2.5")
    plan = make_plan(config_of(args), args.results, gpu=args.gpu, price=price)
    print(json.dumps(plan.as_json(), indent=2, allow_nan=False) if args.json else to_text(plan), end="")
    for problem in plan.problems:
        print(f"mpadam plan: {problem}", file=sys.stderr)
    return EXIT_BAD_INPUT if plan.problems else 0
