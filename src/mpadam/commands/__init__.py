"""One module for each subcommand: `ARGUMENTS`, `run(args) -> exit code`, and a docstring that is its help: what the
command does, and below it an example.

The modules are imported for `mpadam --help`, so everything heavy is imported inside `run`.
"""
