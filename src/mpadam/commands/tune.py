r"""`mpadam tune`: choose the rates of one (model, regime, optimizer) from its finished trials.

    mpadam tune --trials results/smoke/tuning/200k/bf16-bf16/adamw/trial*/summary.json \
      --searched '{"trials": [{"lr": 0.001}, {"lr": 0.003}]}' --out selected.yaml
"""

from pathlib import Path
from typing import Any

from mpadam.arguments import Namespace, argument

ARGUMENTS = (
    argument("--trials", required=True, type=Path, nargs="+", help="summary.json of each trial, in order"),
    argument(
        "--searched",
        required=True,
        help="JSON: `trials` lists the searched values of each trial, `extend` says how many further ones may count",
    ),
    argument("--out", required=True, type=Path, help="selected.yaml to write"),
)


def run(args: Namespace) -> int:
    from mpadam.atomic import write_text
    from mpadam.study.load import to_yaml
    from mpadam.study.tuning import select, with_further
    from mpadam.training.trials import further_folder, read_trial

    folders = [path.parent for path in args.trials]
    trials, allowance = read_searched(args.searched, folders)

    def made(number: int, values: dict[str, float]) -> dict[str, Any]:
        return read_trial(further_folder(folders[0], number), values)

    trials = with_further(trials, allowance, made)
    selected = select(trials, allowance)
    write_text(args.out, to_yaml(selected))
    print(f"{args.out}: trial {selected['best']} of {len(trials)}: {selected['values']}")
    return 0


def read_searched(text: str, folders: list[Path]) -> tuple[list[dict[str, Any]], int]:
    """The finished trials in these folders, of which the JSON lists the searched values, and how many further ones
    there may be."""
    import json

    from mpadam.training.trials import read_trial

    searched = json.loads(text)
    values = searched["trials"]
    if len(values) != len(folders):
        raise ValueError(f"--trials names {len(folders)} trials, --searched lists {len(values)}")
    return [read_trial(f, v) for v, f in zip(values, folders, strict=True)], searched.get("extend", 0)
