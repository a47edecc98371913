"""Fetches what a study needs from the hub: the only part of the package that opens a connection.

    mpadam download --config config.yaml --tokenizer
    mpadam download --config config.yaml --shard train-00000-of-01024       one job per shard in the workflow
    mpadam download --config config.yaml                                    all files, one after the other

A file is fetched under a hidden name, checked against the size and checksum that the hub states, and renamed
(data/hub.py). Its receipt is written last, so that a file with a receipt was complete. A call for files that are
already here opens no connection.
"""

from pathlib import Path
from typing import Any

from mpadam.atomic import write_json
from mpadam.data import c4_hub
from mpadam.data.hub import PATIENT, HubFile, Log, NotOnHubError, Patience, endpoint, fetch
from mpadam.data.sources import text_shards
from mpadam.data.tokenizer import FILES, tokenizer_receipt
from mpadam.stored import read_object, sha256
from mpadam.study.text import DataConfig, TokenizerConfig

_AGAIN = "delete it, and its files are checked again"


def download_shard(data: DataConfig, name: str, *, log: Log, patience: Patience = PATIENT) -> None:
    """Fetch one shard of C4, e.g. `train-00000-of-01024`, and write its receipt.

    Raises ValueError for a shard that the study does not use, and what `hub.fetch` raises.
    """
    if data.source != "c4_hub":
        raise ValueError(f"data.source is {data.source!r}: no shard to download; only 'c4_hub' is fetched")
    shards = {shard.name: shard for shard in text_shards(data)}
    if name not in shards:
        raise ValueError(f"--shard {name}: not among the study's {len(shards)} shards, {next(iter(shards))}, ...")
    facts, path, receipt = shards[name].facts, shards[name].path, c4_hub.receipt_path(data, name)
    assert path is not None
    file, known = (
        HubFile(facts["repo"], "dataset", facts["revision"], facts["file"]),
        read_object(receipt, remedy=_AGAIN),
    )
    if not _is_complete(path, known, file):
        log(f"{file.name} of {file.repo} from {endpoint()}")
        known = fetch(file, path, log=log, patience=patience)
        receipt.parent.mkdir(parents=True, exist_ok=True)
        write_json(receipt, known)
    log(f"{path}: complete")


def download_tokenizer(data: DataConfig, tokenizer: TokenizerConfig, *, log: Log, patience: Patience = PATIENT) -> None:
    """Fetch the study's tokenizer and write its receipt.

    Raises ValueError where the repository has no tokenizer.json, and what `hub.fetch` raises.
    """
    if tokenizer.source != "hub":
        raise ValueError(f"tokenizer.source is {tokenizer.source!r}: nothing to download; only 'hub' is fetched")
    assert tokenizer.repo is not None
    assert tokenizer.revision is not None
    origin = {"repo": tokenizer.repo, "revision": tokenizer.revision}
    receipt = tokenizer_receipt(data, tokenizer)
    before, files = read_object(receipt, remedy=_AGAIN).get("files", {}), {}
    for name in before or FILES:  # a receipt lists all files that the repository has of these names
        file, path = HubFile(tokenizer.repo, "model", tokenizer.revision, name), receipt.with_name(name)
        known = {**origin, "file": name, **before.get(name, {})}
        try:
            found = known if _is_complete(path, known, file) else fetch(file, path, log=log, patience=patience)
            files[name] = {key: found[key] for key in ("bytes", "sha256")}
        except NotOnHubError:
            log(f"{name}: {tokenizer.repo} has none")
    if "tokenizer.json" not in files:
        raise ValueError(
            f"tokenizer.repo: {tokenizer.repo} has no tokenizer.json; convert it with transformers.AutoTokenizer and "
            "save_pretrained, and use  source: folder"
        )
    write_json(receipt, {**origin, "files": files})
    log(f"{receipt.parent}: complete")


def download_all(data: DataConfig, tokenizer: TokenizerConfig, *, log: Log) -> None:
    if tokenizer.source == "hub":
        download_tokenizer(data, tokenizer, log=log)
    if data.source == "c4_hub":
        for shard in text_shards(data):
            download_shard(data, shard.name, log=log)


def _is_complete(path: Path, receipt: dict[str, Any], file: HubFile) -> bool:
    """Whether the file is here, as its receipt says, and the receipt is this file's."""
    wanted = {"repo": file.repo, "revision": file.revision, "file": file.name}
    if "sha256" not in receipt or any(receipt.get(key) != value for key, value in wanted.items()):
        return False
    return sha256(path) == receipt["sha256"]
