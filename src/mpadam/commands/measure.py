"""`mpadam measure`: measure the time of an optimizer step, or bytes per parameter.

mpadam measure step-time --options '{"rounds": 5}' --out results/smoke/paper
"""

from mpadam.arguments import Namespace, kinds

KINDS = {
    "step-time": "time of one step of each optimizer, with weights stored in each format, next to torch's fused AdamW",
    "memory": "bytes per parameter of each optimizer for the paper's models, with Apollo-E",
}


ARGUMENTS = [kinds(KINDS, command="measure", options="mpadam.study.measure", out="gets tables/ and measure/")]


def run(args: Namespace) -> int:
    from mpadam.measure.produce import produce
    from mpadam.study.measure import parse_options

    produce(args.kind, parse_options(args.kind, args.options), args.out)
    if not args.records_only:
        from mpadam.exhibits.registry import of_record
        from mpadam.exhibits.source import Source
        from mpadam.exhibits.write import write_and_print

        write_and_print(of_record(f"measure/{args.kind}.json"), Source(args.out))
    return 0
