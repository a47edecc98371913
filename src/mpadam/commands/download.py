"""`mpadam download`: Fetch a study's text (data.source c4_hub) and tokenizer (tokenizer.source hub) from the hub, or a
part of them.

No other command opens a connection.

    mpadam download --config config.yaml --shard train-00000-of-01024
    HF_ENDPOINT=https://mirror.example mpadam download --config config.yaml
"""

import sys

from mpadam.arguments import Namespace, argument, one_of
from mpadam.commands.data import WHICH_STUDY, data_section, log, study_sections
from mpadam.exits import EXIT_STOPPED

ARGUMENTS = (
    WHICH_STUDY,
    one_of(
        argument("--shard", metavar="NAME", help="only this shard, e.g. validation-00000-of-00008"),
        argument("--tokenizer", action="store_true", help="only the tokenizer"),
    ),
)


def run(args: Namespace) -> int:
    """0: all files are here. 75: the hub did not answer; the bytes received are kept, and the next call continues."""
    from mpadam.data.download import download_all, download_shard, download_tokenizer
    from mpadam.data.hub import UnreachableError

    try:
        if args.shard is not None:
            download_shard(data_section(args), args.shard, log=log)
        elif args.tokenizer:
            download_tokenizer(*study_sections(args), log=log)
        else:
            download_all(*study_sections(args), log=log)
    except UnreachableError as error:
        print(f"mpadam download: {error}", file=sys.stderr)
        return EXIT_STOPPED
    return 0
