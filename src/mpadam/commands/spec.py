r"""`mpadam spec`: write run.yaml: every field that changes a run's numbers, and their hash.

    mpadam spec --request "$REQUEST" --manifest results/smoke/data/manifest.json \
      --selected results/smoke/tuning/200k/bf16-bf16/adamw/selected.yaml --out RUN_DIR/run.yaml
    (REQUEST is the JSON that the workflow makes of the configuration: snakemake -n -p shows it)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpadam.arguments import Namespace, argument

if TYPE_CHECKING:
    from mpadam.study.auto import Auto
    from mpadam.study.spec import RunFile


ARGUMENTS = (
    argument("--request", required=True, nargs="+", help="what the configuration says of each run, as JSON"),
    argument("--manifest", required=True, type=Path, help="manifest.json of the study's data"),
    argument("--selected", nargs="*", default=[], help="selected.yaml of each run's tuning, - where a run has none"),
    argument("--out", required=True, type=Path, nargs="+", help="the run.yaml of each, to write"),
)


def run(args: Namespace) -> int:
    import json

    from mpadam.stored import stored
    from mpadam.study.load import read_yaml

    selected = args.selected or ["-"] * len(args.out)
    for key, given in (("--request", args.request), ("--selected", selected)):
        if len(given) != len(args.out):
            raise ValueError(f"{key} has {len(given)} values and --out {len(args.out)}: give one for each run")
    with stored(args.manifest, remedy="delete it and run the workflow again"):
        manifest = json.loads(args.manifest.read_text(encoding="utf-8"))
        _ = [manifest[key] for key in ("fingerprint", "tokenizer_fingerprint", "vocab_size", "train_sequences")]
    for request, tuned, out in zip(args.request, selected, args.out, strict=True):
        with stored(Path(tuned), remedy="delete it and run the workflow again"):
            values = {} if tuned == "-" else dict(read_yaml(Path(tuned))["values"].items())
        _write(json.loads(request), values, manifest, args, out)
    return 0


def _write(
    request: dict[str, Any], selected: dict[str, float], manifest: dict[str, Any], args: Namespace, out: Path
) -> None:
    """Write a run's specification; what training has begun here keeps what "auto" meant when it began, where the rest
    is the same: another processor or another seed is no reason to train a finished run again."""
    import os

    from mpadam.study.auto import auto_here, recorded_auto
    from mpadam.study.run_folder import RunFolder, recorded_identity
    from mpadam.study.spec import resolve, write_run_file

    data = os.path.relpath(args.manifest.parent, out.parent)

    def run_file_for(auto: Auto) -> RunFile:
        return resolve(request, manifest=manifest, selected=selected, data=data, auto=auto)

    recorded = recorded_identity(RunFolder(out.parent))
    run_file = run_file_for(recorded_auto(recorded[1])) if recorded else None
    if run_file is None or recorded is None or run_file.spec.hash != recorded[0]:
        run_file = run_file_for(auto_here(request))
    write_run_file(out, run_file)
    print(f"{out}: {run_file.spec.hash}")
