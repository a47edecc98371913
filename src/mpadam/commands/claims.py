"""`mpadam claims`: judge the paper's claims, the objections and our own questions on a study's runs.

mpadam claims --config config.yaml --config studies/pilot.yaml --results results --view paper
"""

from pathlib import Path

from mpadam.arguments import RECORDS_ONLY, STUDY, Namespace, argument, exit_code, study_of

ARGUMENTS = (
    *STUDY,
    RECORDS_ONLY,
    argument("--claims", type=Path, help="claims to judge; default: those of the package"),
    argument(
        "--pooled",
        action="store_true",
        help="one variance, the largest, for all cells of a family: few seeds tell more",
    ),
)


def run(args: Namespace) -> int:
    """3 if a result was refused."""
    from mpadam.analysis.collect import collect
    from mpadam.claims.data import CLAIMS, load_claims
    from mpadam.claims.examine import FILE, examine, summary_lines, write_claims
    from mpadam.study.load import ConfigError

    config, paths = study_of(args)
    collected = collect(config, paths)
    if collected.unverified:
        raise ConfigError(
            f"{paths.manifest}: does not exist, so runs cannot be checked against their data, and nothing is judged"
        )
    claims = load_claims(args.claims or CLAIMS)
    verdicts = examine(collected, claims, diagnostics=paths.output / "diagnostics", pooled=args.pooled)
    write_claims(verdicts, collected)
    if not args.records_only:
        from mpadam.exhibits.registry import needing
        from mpadam.exhibits.source import source_of
        from mpadam.exhibits.write import write

        write(needing(FILE, config, paths.view), source_of(collected))
    print("\n".join(summary_lines(verdicts)))
    return exit_code(collected, "claims")
