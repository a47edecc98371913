"""One job per shard, through the real workflow: what is fetched and made, what runs again, no connection afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.workflow.toy import Toy, make_toy

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from hub_server import COMMIT, HubServer, status

RUN = "results/toy/runs/nano/1x/bf16-bf16/adamw/seed0"
SHARDS = ("train-00000-of-01024", "train-00001-of-01024", *(f"validation-{k:05d}-of-00008" for k in range(8)))

# Put on the path of a process, it refuses every connection and writes it down.
NO_NETWORK = """
import os, sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        with open(os.environ["REFUSED"], "a") as file:
            file.write(f"{event} {arguments[1:]} {sys.argv}" + chr(10))
        raise OSError("no network here")
sys.addaudithook(refuse)
"""


def publish(hub: HubServer, c4: Path) -> None:
    """The toy's text and a tokenizer of its words; of the eight validation shards each holds the toy's one."""
    for path in (c4 / "en").glob("c4-train*"):
        hub.add("dataset", "allenai/c4", f"en/{path.name}", path.read_bytes())
    validation = (c4 / "en/c4-validation.00000-of-00008.json.gz").read_bytes()
    for number in range(8):
        hub.add("dataset", "allenai/c4", f"en/c4-validation.{number:05d}-of-00008.json.gz", validation)
    bytes_and_end = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(bytes_and_end)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    repo = "hf-internal-testing/llama-tokenizer"
    hub.add("model", repo, "tokenizer.json", tokenizer.to_str().encode())
    hub.add("model", repo, "tokenizer_config.json", b'{"eos_token": "</s>"}', large=False)


def from_hub(toy: Toy, epochs: int = 8) -> Toy:
    """The toy's text and tokenizer come from the hub."""
    data = f"{{source: c4_hub, path: null, revision: {COMMIT}, train_shards: 2, sequences: pack, "
    data += f"sequence_length: 32, validation_tokens: 2000, epochs: {epochs}, downloads_at_once: 1}}"
    tokenizer = f"{{source: hub, repo: hf-internal-testing/llama-tokenizer, revision: {COMMIT}, path: null}}"
    overlay = (toy.folder / "toy.yaml").read_text()
    overlay = re.sub(r"^data: .*$", f"data: {data}", overlay, flags=re.MULTILINE)
    (toy.folder / "toy.yaml").write_text(re.sub(r"^tokenizer: .*$", f"tokenizer: {tokenizer}", overlay, flags=re.M))
    return toy


@pytest.fixture(scope="module")
def hub_toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Toy, HubServer]]:
    """A toy whose data have been made from a hub; the first answer of the hub was 429."""
    toy = from_hub(make_toy(tmp_path_factory.mktemp("hub") / "toy"))
    patch = pytest.MonkeyPatch()
    with HubServer() as hub:
        publish(hub, toy.folder / "c4")
        hub.faults.append(status(429, {"Retry-After": "0"}))
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        done = toy.snakemake("results/toy/data/manifest.json")
        assert done.returncode == 0, done.stdout + done.stderr
        (toy.folder / "printed.txt").write_text(done.stdout + done.stderr)
        yield toy, hub
        patch.undo()


def test_each_shard_is_fetched_once_and_recorded(hub_toy: tuple[Toy, HubServer]) -> None:
    """D2: one downloader for the whole DAG, each file once."""
    toy, hub = hub_toy
    names = [asked.path for asked in hub.asked if asked.method == "HEAD" and "/en/" in asked.path]
    assert sorted(names) == sorted(f"/datasets/allenai/c4/resolve/{COMMIT}/en/{file(shard)}" for shard in SHARDS)
    receipts = {path.stem: json.loads(path.read_text()) for path in (toy.folder / "downloads/c4/receipts").iterdir()}
    assert set(receipts) == set(SHARDS)
    manifest = json.loads((toy.results / "data/manifest.json").read_text())
    assert [shard["source"] for shard in manifest["shards"]] == [receipts[shard] for shard in SHARDS]
    assert manifest["request"]["source"]["revision"] == COMMIT
    assert manifest["request"]["tokenizer"]["revision"] == COMMIT
    assert toy.planned("results/toy/data/manifest.json") == {}


def test_d2_downloads_share_a_limit(hub_toy: tuple[Toy, HubServer]) -> None:
    """D2: never more of them at a time than data.downloads_at_once, here 1, on two cores."""
    printed = (hub_toy[0].folder / "printed.txt").read_text()
    running, most, started = set[str](), 0, ""
    for line in printed.splitlines():
        if match := re.match(r"(?:local)?rule (\w+):", line):
            started = match[1]
        elif (match := re.match(r"\s+jobid: (\d+)", line)) and started.startswith("download_"):
            running.add(match[1])
            most = max(most, len(running))
        elif match := re.match(r"Finished jobid: (\d+)", line):
            running.discard(match[1])
    assert most == 1


def test_d1_afterwards_no_process_opens_a_connection(hub_toy: tuple[Toy, HubServer], tmp_path: Path) -> None:
    """D1: tokenize, train and evaluate, from local files alone; the hub's address leads nowhere now."""
    toy = hub_toy[0].copy(tmp_path / "toy")
    for name in ("manifest.json", "tokenizer/origin.json", f"tokens/{SHARDS[0]}/shard.json"):
        (toy.results / "data" / name).unlink()
    (toy.folder / "src/sitecustomize.py").write_text(NO_NETWORK)
    refused = tmp_path / "refused.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFUSED", str(refused))
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        done = toy.snakemake(f"{RUN}/summary.json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rule tokenize:" in done.stdout + done.stderr
        assert json.loads((toy.folder / RUN / "summary.json").read_text())["status"] == "completed"
        env = {**os.environ, "PYTHONPATH": str(toy.folder / "src")}
        again = [sys.executable, "-m", "mpadam", "evaluate", "--run-dir", str(toy.folder / RUN)]
        subprocess.run(again, env=env, check=True, capture_output=True)
        assert not refused.exists(), refused.read_text()
        calling = "import socket; socket.create_connection(('127.0.0.1', 1))"
        assert subprocess.run([sys.executable, "-c", calling], env=env, capture_output=True, check=False).returncode
    assert "socket.getaddrinfo" in refused.read_text()  # so the block does block
    shutil.rmtree(toy.folder / "downloads/c4/en")  # the receipts are enough from now on
    assert toy.planned(f"{RUN}/summary.json") == {}


def test_a_raised_number_of_shards_fetches_and_tokenizes_only_the_new_ones(hub_toy: tuple[Toy, HubServer]) -> None:
    toy, _ = hub_toy
    planned = toy.planned("results/toy/data/manifest.json", "--config", "data={train_shards: 3}")
    assert planned == {"data": 1, "download_shard": 1, "tokenize": 1}


def test_a_folder_can_have_a_job_a_shard_too(tmp_path: Path) -> None:
    toy = make_toy(tmp_path / "toy")
    toy.edit("toy.yaml", "data: {source", "data: {shard_jobs: true, source")
    assert toy.planned("results/toy/data/manifest.json") == {"data": 1, "tokenize": 3, "tokenizer": 1}


def test_a_budget_beyond_c4_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    toy = from_hub(make_toy(tmp_path / "toy"), epochs=1)
    toy.edit("toy.yaml", "train_shards: 2", "train_shards: null")
    toy.edit("toy.yaml", "steps_1x: 6", "steps_1x: 10000000000")
    done = toy.snakemake("--dry-run")
    assert done.returncode == 2
    assert "needs 40,000,000,000 training sequences" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_replaced_tokenizer_folder_repeats_the_data(tmp_path: Path) -> None:
    """Its content counts, not its place or dates."""
    toy = make_toy(tmp_path / "toy")
    text = (toy.folder / "toy.yaml").read_text()
    overlay = re.sub(
        r"^tokenizer: .*$",
        "tokenizer: {source: folder, path: words, repo: null, revision: null}",
        text,
        flags=re.MULTILINE,
    )
    (toy.folder / "toy.yaml").write_text(overlay)
    folder = toy.folder / "words"
    folder.mkdir()
    write_tokenizer(folder, "</s>")
    assert toy.snakemake("results/toy/data/manifest.json").returncode == 0
    os.utime(folder / "tokenizer.json")
    assert toy.planned("results/toy/data/manifest.json") == {}
    write_tokenizer(folder, "<unk>")
    assert toy.planned("results/toy/data/manifest.json") == {"data": 1}


def write_tokenizer(folder: Path, eos: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "<unk>": 1, "a": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))


def file(shard: str) -> str:
    split, _, place = shard.partition("-")
    return f"c4-{split}.{place}.json.gz"
