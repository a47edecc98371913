"""`mpadam tokenizer`: Train or copy a study's tokenizer (the first stage of mpadam data, as a separate job).

mpadam tokenizer --config config.yaml --out results/paper/data
"""

from mpadam.arguments import Namespace
from mpadam.commands.data import DATA_FOLDER, WHICH_STUDY, log, study_sections

ARGUMENTS = (WHICH_STUDY, DATA_FOLDER)


def run(args: Namespace) -> int:
    from mpadam.data.stages import make_tokenizer

    data, tokenizer = study_sections(args)
    made = make_tokenizer(data, tokenizer, args.out / "tokenizer")
    log(f"{args.out}/tokenizer: {made.vocab_size} tokens ({made.fingerprint})")
    return 0
