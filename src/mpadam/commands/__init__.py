"""One module for each subcommand: `HELP`, `EXAMPLE`, `ARGUMENTS` and `run(args) -> exit code`.

The modules are imported for `mpadam --help`, so everything heavy is imported inside `run`.
"""
