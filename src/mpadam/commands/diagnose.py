"""`mpadam diagnose`: make a diagnostic: matrix fitting, capabilities, survival grid, dataflow, overview.

mpadam diagnose matrix-fitting --options '{"seeds": 5}' --out results/smoke
"""

from mpadam.arguments import Namespace, kinds

#: kind -> what it makes, in figures and tables of the paper
MAKES = {
    "matrix-fitting": "Figures 3 and 5: fitting a matrix whose weights are stored in bf16",
    "capabilities": "Table 1, measured: what updates cannot do, by optimizer, write-back and format",
    "survival-grid": "Figure 1: which updates survive rounding, against |w|",
    "dataflow": "Figures 7 to 9: dtypes and formats that an instrumented training step used",
    "overview": "Figure 2: the two branches and the write-back, as a diagram",
}


ARGUMENTS = [kinds(MAKES, command="diagnose", options="mpadam.study.diagnostics", out="results/<study>")]


def run(args: Namespace) -> int:
    from importlib import import_module

    from mpadam.exhibits.registry import of_record
    from mpadam.exhibits.source import Source
    from mpadam.study.diagnostics import parse_options

    options = parse_options(args.kind, args.options)
    measured = args.kind != "overview"  # a diagram, made of the code alone
    if measured:
        import_module(f"mpadam.diagnostics.{args.kind.replace('-', '_')}").produce(options, args.out)
    if not args.records_only:
        from mpadam.exhibits.write import write

        needs = f"diagnostics/{args.kind}" if measured else ""
        write(of_record(needs, getattr(options, "figures", ())), Source(args.out))
    print(f"{args.out}: {MAKES[args.kind]}")
    return 0
