"""A hub on loopback and a client that notes its waits: fixtures for the tests of fetching."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, HubServer
from huggingface_hub import constants

from mpadam.data import hub as client
from mpadam.data.hub import HubFile, Patience, fetch

CONTENT = random.Random(0).randbytes(50_000)
NAME = "en/c4-train.00000-of-01024.json.gz"
FILE = HubFile("allenai/c4", "dataset", COMMIT, NAME)
SMALL = HubFile("hf-internal-testing/llama-tokenizer", "model", COMMIT, "tokenizer_config.json")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(client, "CHUNK", 1000)
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        server.add("dataset", FILE.repo, NAME, CONTENT)
        server.add("model", SMALL.repo, SMALL.name, b'{"eos_token": "</s>"}', large=False)
        yield server


class Fetching:
    """fetch() with waits that are noted, not waited."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "en" / "shard.json.gz"
        self.waits: list[float] = []
        self.lines: list[str] = []

    def __call__(self, file: HubFile = FILE, *, fruitless: int = 3, stall: float = 5.0) -> dict[str, Any]:
        patience = Patience(fruitless=fruitless, stall=stall, wait=self.waits.append)
        return fetch(file, self.target, log=self.lines.append, patience=patience)

    @property
    def left(self) -> list[str]:
        """Files in the target's folder."""
        return sorted(path.name for path in self.target.parent.iterdir()) if self.target.parent.exists() else []


@pytest.fixture
def fetching(tmp_path: Path) -> Fetching:
    return Fetching(tmp_path)
