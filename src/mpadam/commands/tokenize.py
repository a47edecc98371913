"""`mpadam tokenize`: Tokenize one shard (the second stage of mpadam data): validation shards first, training shards
then in any order.

    mpadam tokenize --config config.yaml --out results/paper/data --shard train-00000-of-01024
"""

import os

from mpadam.arguments import Namespace, argument
from mpadam.commands.data import DATA_FOLDER, WHICH_STUDY, data_section, log

ARGUMENTS = (
    WHICH_STUDY,
    DATA_FOLDER,
    argument("--shard", required=True, metavar="NAME", help="e.g. validation-00000-of-00008"),
    argument(
        "--threads", type=int, default=1, metavar="N", help="of this job (default 1: shards share the cores better)"
    ),
)


def run(args: Namespace) -> int:
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)  # where the tokenizer's library reads it, when first used
    from mpadam.data.stages import tokenize_one

    tokenize_one(data_section(args), args.shard, args.out, log=log)
    return 0
