"""One module a subcommand: `HELP`, `EXAMPLE`, `add_arguments(parser)` and `run(args) -> exit code`.

The modules are imported for `mpadam --help`, so everything heavy is imported inside `run`.
"""
