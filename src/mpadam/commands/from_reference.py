r"""`mpadam from-reference`: turn a launch command of the reference implementation into a run.yaml, or into a study.

    mpadam from-reference 'torchrun --standalone --nproc_per_node=2 main.py --model_config ...' \
      --data results/paper/data --run-dir runs/reference
    mpadam from-reference - --out studies/reference.yaml < launch.sh
    (a run.yaml names the data's fingerprint, so it needs prepared data; a study does not)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpadam.arguments import Namespace, argument

ARGUMENTS = (
    argument("launch", metavar="COMMAND", help="the launch command in quotes; - reads it from standard input"),
    argument("--data", type=Path, metavar="FOLDER", help="prepared data (results/<study>/data): for run.yaml"),
    argument("--run-dir", type=Path, metavar="D", help="folder to write run.yaml into; needs --data"),
    argument("--out", type=Path, metavar="FILE", help="file for the study; default: standard output"),
    argument("--device", choices=("cuda", "cpu"), default="cuda", help="what to train on (default: cuda)"),
    argument("--epochs", type=int, default=1, help="passes over the text that the run may take (default: 1)"),
)


def run(args: Namespace) -> int:
    """Write run.yaml or the study, and say how to go on and what was left out."""
    import sys

    from mpadam.reference.command import read_command
    from mpadam.reference.study import translate
    from mpadam.study.load import merge

    if (args.data is None) != (args.run_dir is None):
        raise ValueError("--data and --run-dir go together: the folder of prepared data, and the one for run.yaml")
    if args.run_dir is not None and args.out is not None:
        raise ValueError("--out is for a study and --run-dir for a run.yaml: give one of them")
    translation = translate(read_command(sys.stdin.read() if args.launch == "-" else args.launch))
    content = merge(translation.content, {"training": {"device": args.device}, "data": {"epochs": args.epochs}})
    for note in translation.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.run_dir is None:
        _write_study(content, args.out)
    else:
        processes = translation.processes if args.device == "cuda" else 1
        _write_run(content, data=args.data, run_dir=args.run_dir, processes=processes)
    return 0


def _write_run(content: Mapping[str, Any], *, data: Path, run_dir: Path, processes: int) -> None:
    import sys

    from mpadam.reference.study import run_file
    from mpadam.study.spec import write_run_file

    run = run_file(content, data=data, run_dir=run_dir)
    write_run_file(run_dir / "run.yaml", run)
    torchrun = f"torchrun --standalone --nproc_per_node={processes} -m " if processes > 1 else ""
    print(f"note: text and tokenizer are those of {data}", file=sys.stderr)
    print(f"{run_dir / 'run.yaml'}: {run.spec.hash}\n{torchrun}mpadam train --run-dir {run_dir}")


def _write_study(content: Mapping[str, Any], out: Path | None) -> None:
    from mpadam.atomic import write_text
    from mpadam.study.load import parse_study, to_yaml

    parse_study(content)
    text = to_yaml(content)
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)
        print(f"{out}: study {content['study']}\nsnakemake --profile slurm --configfile {out}")
