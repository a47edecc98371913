"""What a study needs from the hub, brought here: the only part of the package that opens a connection.

    mpadam download --config config.yaml --tokenizer
    mpadam download --config config.yaml --shard train-00000-of-01024       a job a shard in the workflow
    mpadam download --config config.yaml                                    all of it, one file after the other

A file is fetched under a hidden name, checked against the size and checksum that the hub states, and renamed
(data/hub.py). Its receipt is written last: what has one was whole. A call for what is here already opens no connection.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mpadam.atomic import write_json
from mpadam.data import c4_hub, tokenizer_hub
from mpadam.data.hub import PATIENT, HubFile, Log, NotOnHubError, Patience, endpoint, fetch
from mpadam.data.sources import text_shards
from mpadam.data.tokenizer import FILES
from mpadam.presence import is_there
from mpadam.stored import stored
from mpadam.study.text import DataConfig, TokenizerConfig


def download_shard(data: DataConfig, name: str, *, log: Log, patience: Patience = PATIENT) -> None:
    """Fetch one shard of C4, e.g. `train-00000-of-01024`, and write its receipt.

    Raises ValueError for a shard that the study does not use, and what `hub.fetch` raises.
    """
    shards = {shard.name: shard for shard in text_shards(_from_hub(data))}
    if name not in shards:
        raise ValueError(f"--shard {name}: not among the study's {len(shards)} shards, {next(iter(shards))}, ...")
    assert data.revision is not None
    file, path = HubFile(c4_hub.REPO, "dataset", data.revision, shards[name].facts["file"]), shards[name].path
    receipt = c4_hub.receipt_path(data, name)
    assert path is not None
    if not _whole(path, _read(receipt), file):
        log(f"{file.name} of {file.repo} from {endpoint()}")
        content = fetch(file, path, log=log, patience=patience)
        receipt.parent.mkdir(parents=True, exist_ok=True)
        write_json(receipt, content)
    log(f"{path}: whole")


def download_tokenizer(data: DataConfig, tokenizer: TokenizerConfig, *, log: Log, patience: Patience = PATIENT) -> None:
    """Fetch the study's tokenizer and write its receipt.

    Raises ValueError where the repository has no tokenizer.json, and what `hub.fetch` raises.
    """
    if tokenizer.source != "hub":
        raise ValueError(f"tokenizer.source is {tokenizer.source!r}: nothing to download; only 'hub' is fetched")
    receipt = tokenizer_hub.receipt_path(data, tokenizer)
    files = {name: content for name in FILES if (content := _fetch_optional(tokenizer, name, receipt, log, patience))}
    if "tokenizer.json" not in files:
        raise ValueError(
            f"tokenizer.repo: {tokenizer.repo} has no tokenizer.json; convert it with transformers.AutoTokenizer and "
            "save_pretrained, and use  source: folder"
        )
    write_json(receipt, {"repo": tokenizer.repo, "revision": tokenizer.revision, "files": files})
    log(f"{receipt.parent}: whole")


def download_all(data: DataConfig, tokenizer: TokenizerConfig, *, log: Log) -> None:
    """Fetch whatever the study needs from the hub."""
    if tokenizer.source == "hub":
        download_tokenizer(data, tokenizer, log=log)
    if data.source == "c4_hub":
        for shard in text_shards(data):
            download_shard(data, shard.name, log=log)


def _from_hub(data: DataConfig) -> DataConfig:
    if data.source != "c4_hub":
        raise ValueError(f"data.source is {data.source!r}: no shard to download; only 'c4_hub' is fetched")
    return data


def _fetch_optional(
    tokenizer: TokenizerConfig, name: str, receipt: Path, log: Log, patience: Patience
) -> dict[str, Any] | None:
    """Receipt of one file of a tokenizer, None where the repository has none of that name."""
    assert tokenizer.repo is not None
    assert tokenizer.revision is not None
    file, path = HubFile(tokenizer.repo, "model", tokenizer.revision, name), receipt.with_name(name)
    known = {"repo": file.repo, "revision": file.revision, "file": name}
    before = _read(receipt).get("files", {})
    if before and (name not in before or _whole(path, {**known, **before[name]}, file)):
        return before.get(name)
    try:
        content = fetch(file, path, log=log, patience=patience)
    except NotOnHubError:
        log(f"{name}: {tokenizer.repo} has none")
        return None
    return {key: content[key] for key in ("bytes", "sha256")}


def _read(receipt: Path) -> dict[str, Any]:
    with stored(receipt, remedy="delete it, and what it is the receipt of is looked at again"):
        content: dict[str, Any] = json.loads(receipt.read_bytes()) if is_there(receipt) else {}
        return {**content}


def _whole(path: Path, receipt: dict[str, Any], file: HubFile) -> bool:
    """Whether the file is here, as its receipt says, and the receipt is this file's."""
    wanted = {"repo": file.repo, "revision": file.revision, "file": file.name}
    if any(receipt.get(key) != value for key, value in wanted.items()) or not is_there(path):
        return False
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == receipt["sha256"]
