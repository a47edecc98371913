"""A tokenizer from the hub, at a commit, as `mpadam download` has fetched it. Nothing here opens a connection.

downloads/tokenizers/<owner>--<name>/<commit>/{tokenizer.json, ..., receipt.json}
"""

import json
from pathlib import Path

from mpadam.presence import is_there
from mpadam.stored import sha256, stored
from mpadam.study.text import DataConfig, TokenizerConfig


def receipt_path(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """The receipt of the tokenizer's files, which are in the same folder."""
    assert tokenizer.repo is not None
    assert tokenizer.revision is not None
    return Path(data.downloads) / "tokenizers" / tokenizer.repo.replace("/", "--") / tokenizer.revision / "receipt.json"


def fetched(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """The folder with the tokenizer's files.

    Raises ValueError where they are not here, or not what was fetched.
    """
    receipt = receipt_path(data, tokenizer)
    if not is_there(receipt):
        raise ValueError(f"{receipt}: not here; run  mpadam download --tokenizer  first")
    with stored(receipt, remedy="delete it; run  mpadam download --tokenizer  again"):
        expected = {name: known["sha256"] for name, known in json.loads(receipt.read_bytes())["files"].items()}
    for name, checksum in expected.items():
        if sha256(receipt.with_name(name)) != checksum:
            raise ValueError(
                f"{receipt.with_name(name)}: not the file that was fetched; run  mpadam download --tokenizer  again"
            )
    return receipt.parent
