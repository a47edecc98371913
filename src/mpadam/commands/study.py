"""`mpadam study`: check a configuration and print or write it with everything resolved.

mpadam study --config config.yaml --config studies/smoke.yaml
"""

from pathlib import Path

from mpadam.arguments import Namespace, argument

ARGUMENTS = (
    argument("--config", type=Path, action="append", default=[], help="file, each over the ones before"),
    argument("--content", help="the merged configuration as JSON, in place of files"),
    argument("--out", type=Path, help="file to write; default: standard output"),
)


def run(args: Namespace) -> int:
    import json

    from mpadam.atomic import write_text
    from mpadam.study.load import ConfigError, load_study, parse_study, to_yaml

    if bool(args.config) == bool(args.content):
        raise ConfigError("give --config FILE (once or more), or --content JSON")
    config = parse_study(json.loads(args.content)) if args.content else load_study(args.config)
    text = to_yaml(config.model_dump(mode="json"))
    if args.out is None:
        print(text, end="")
    else:
        write_text(args.out, text)
    return 0
