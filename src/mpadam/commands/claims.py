"""`mpadam claims`: a verdict on every claim from the runs of a study."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpadam.arguments import add_study, exit_code, study_of

HELP = "judge the paper's claims, the objections and our own questions on a study's runs"
EXAMPLE = "mpadam claims --config config.yaml --config studies/pilot.yaml --results results --view paper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument("--claims", type=Path, help="claims to judge; default: those of the package")
    parser.add_argument(
        "--pooled",
        action="store_true",
        help="one variance, the largest, for all cells of a family: few seeds tell more",
    )


def run(args: argparse.Namespace) -> int:
    """Write claims.json, tables/claims.* and figures/claims.*, print the verdicts and the hash of the claims; 3 if a
    result was refused."""
    from mpadam.analysis.claims.data import CLAIMS, load_claims
    from mpadam.analysis.claims.examine import examine
    from mpadam.analysis.claims.figure import claims_figure
    from mpadam.analysis.claims.report import claims_table, summary_lines, write_claims
    from mpadam.analysis.collect import collect
    from mpadam.analysis.pictures import write_picture
    from mpadam.analysis.render import write_table
    from mpadam.study.load import ConfigError

    config, paths = study_of(args)
    collected = collect(config, paths)
    if collected.unverified:
        raise ConfigError(
            f"{paths.manifest}: not there, so runs cannot be held against their data, and nothing is judged"
        )
    claims = load_claims(args.claims or CLAIMS)
    verdicts = examine(collected, claims, diagnostics=paths.output / "diagnostics", pooled=args.pooled)
    write_claims(verdicts, collected)
    write_table(claims_table(verdicts, collected), paths.output / "tables")
    write_picture(claims_figure(verdicts, collected), paths.output / "figures")
    print("\n".join(summary_lines(verdicts)))
    return exit_code(collected, "claims")
