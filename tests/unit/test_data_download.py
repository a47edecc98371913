"""C4 and tokenizers from the hub: what a study needs, what is kept of it, and that it is what was fetched."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_server as fault
import pytest
from data_samples import bpe, c4_config, documents, files_below, quiet, write_c4
from hub_server import COMMIT, HubServer
from huggingface_hub import constants
from test_data_tokenizer import word_tokenizer

from mpadam import cli
from mpadam.data import TokenData
from mpadam.data.download import download_all, download_shard, download_tokenizer
from mpadam.data.hub import Patience, UnreachableError
from mpadam.data.sources import source_identity, text_shards
from mpadam.data.stages import make_tokenizer, prepare, tokenize_one
from mpadam.data.tokenizer import load_tokenizer, tokenizer_identity
from mpadam.plan.needs import largest_budget, planned
from mpadam.plan.plan import make_plan
from mpadam.study.config import StudyConfig
from mpadam.study.load import ConfigError, load_study, merge, parse_study, read_yaml
from mpadam.study.text import DataConfig, TokenizerConfig

ROOT = Path(__file__).parents[2]
REPO = "hf-internal-testing/llama-tokenizer"
TRAIN = "train-00000-of-01024"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with two training shards, eight validation shards, and a tokenizer."""
    text = write_c4(tmp_path / "text")
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        for path in (text / "en").glob("*train*"):
            server.add("dataset", "allenai/c4", f"en/{path.name}", path.read_bytes())
        for number in range(8):
            lines = [json.dumps({"text": document}) + "\n" for document in documents(20, seed=100 + number)]
            content = gzip.compress("".join(lines).encode(), mtime=0)
            server.add("dataset", "allenai/c4", f"en/c4-validation.{number:05d}-of-00008.json.gz", content)
        for path in word_tokenizer(tmp_path / "saved").iterdir():
            server.add("model", REPO, path.name, path.read_bytes(), large=path.name == "tokenizer.json")
        yield server


def from_hub(folder: Path, **changes: Any) -> DataConfig:
    settings = {"source": "c4_hub", "revision": COMMIT, "downloads": str(folder / "downloads"), "train_shards": 2}
    return DataConfig.model_validate({**settings, "sequences": "pack", "sequence_length": 16, **changes})


def tokenizer_from_hub(**changes: Any) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"source": "hub", "repo": REPO, "revision": COMMIT, **changes})


def test_d1_everything_is_fetched_once_and_prepared_without_the_hub(hub: HubServer, tmp_path: Path) -> None:
    """D1: after the download the hub may be gone; the same tokens as from a folder with these files."""
    data, tokenizer = from_hub(tmp_path), tokenizer_from_hub()
    download_all(data, tokenizer, log=quiet)
    asked = len(hub.asked)
    download_all(data, tokenizer, log=quiet)
    manifest = prepare(data, tokenizer, tmp_path / "data", log=quiet)
    assert len(hub.asked) == asked
    folder = c4_config(tmp_path / "downloads" / "c4")
    saved = TokenizerConfig(source="folder", path=str(tmp_path / "saved"))
    same = prepare(folder, saved, tmp_path / "same", log=quiet)
    assert manifest["fingerprint"] == same["fingerprint"]
    tokens = {name: content for name, content in files_below(tmp_path / "data").items() if name.endswith(".bin")}
    assert tokens == {name: content for name, content in files_below(tmp_path / "same").items() if name in tokens}
    assert len(tokens) == 2 * 2 + 8 * 3
    TokenData.open(tmp_path / "data", verify=True)


def test_d1_commit_and_checksums_are_recorded(hub: HubServer, tmp_path: Path) -> None:
    data, tokenizer = from_hub(tmp_path), tokenizer_from_hub()
    download_all(data, tokenizer, log=quiet)
    manifest = prepare(data, tokenizer, tmp_path / "data", log=quiet)
    assert manifest["request"]["source"] == {
        "source": "c4_hub",
        "repo": "allenai/c4",
        "config": "en",
        "revision": COMMIT,
        "train_shards": 2,
    }
    assert manifest["request"]["tokenizer"] == {"source": "hub", "repo": REPO, "revision": COMMIT}
    file = "en/c4-train.00000-of-01024.json.gz"
    assert manifest["shards"][0]["source"] == {
        "repo": "allenai/c4",
        "revision": COMMIT,
        "file": file,
        "bytes": len(hub.files[True, "allenai/c4", file].content),
        "sha256": hub.files[True, "allenai/c4", file].checksum,
    }
    assert str(tmp_path) not in (tmp_path / "data" / "manifest.json").read_text()


def test_nothing_is_asked_of_the_hub_to_say_what_the_data_are(tmp_path: Path) -> None:
    """At each parse of the workflow: no connection, no file."""
    data = from_hub(tmp_path, train_shards=None)
    names = [shard.name for shard in text_shards(data)]
    assert (len(names), names[0], names[1023], names[-1]) == (
        1032,
        TRAIN,
        "train-01023-of-01024",
        "validation-00007-of-00008",
    )
    assert source_identity(data)["train_shards"] == 1024
    assert tokenizer_identity(tokenizer_from_hub())["revision"] == COMMIT


def test_a_shard_that_is_not_here_is_named_with_the_command(tmp_path: Path) -> None:
    shard = text_shards(from_hub(tmp_path))[0]
    with pytest.raises(ValueError, match=rf"not here \(or without its receipt.*  mpadam download --shard {TRAIN}  f"):
        shard.open()


def test_a_tokenizer_that_is_not_here_is_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run  mpadam download --tokenizer  first"):
        make_tokenizer(from_hub(tmp_path), tokenizer_from_hub(), tmp_path / "tokenizer")


def test_d3_a_fetched_shard_that_changed_since_is_refused(hub: HubServer, tmp_path: Path) -> None:
    """D3: even if it is a sound gzip file of documents of the same size."""
    data = from_hub(tmp_path)
    download_all(data, tokenizer_from_hub(), log=quiet)
    make_tokenizer(data, tokenizer_from_hub(), tmp_path / "data" / "tokenizer")
    path = tmp_path / "downloads/c4/en/c4-validation.00003-of-00008.json.gz"
    path.write_bytes(gzip.compress(b'{"text": "weight gradient"}\n'))
    with pytest.raises(ValueError, match=r"c4-validation.00003-of-00008.json.gz: its SHA-256 is .*download --shard"):
        tokenize_one(data, "validation-00003-of-00008", tmp_path / "data", log=quiet)
    assert list((tmp_path / "data" / "tokens").iterdir()) == []


def test_d3_a_truncated_file_on_the_hub_itself_fails_by_name(hub: HubServer, tmp_path: Path) -> None:
    """D3: the hub's checksum is right, the gzip is not."""
    name = "en/c4-validation.00000-of-00008.json.gz"
    hub.add("dataset", "allenai/c4", name, hub.files[True, "allenai/c4", name].content[:-20])
    data = from_hub(tmp_path)
    download_all(data, tokenizer_from_hub(), log=quiet)
    with pytest.raises(ValueError, match=r"c4-validation.00000-of-00008.json.gz: the file is cut short"):
        prepare(data, tokenizer_from_hub(), tmp_path / "data", log=quiet)
    assert not (tmp_path / "data").exists()


def test_a_shard_of_another_commit_is_not_used(hub: HubServer, tmp_path: Path) -> None:
    download_shard(from_hub(tmp_path), TRAIN, log=quiet)
    other = from_hub(tmp_path, revision="0" * 40)
    with pytest.raises(ValueError, match=rf"of commit {COMMIT}, not of data.revision; run  mpadam download"):
        text_shards(other)[0].open()


def test_another_commit_with_the_same_file_fetches_no_byte(hub: HubServer, tmp_path: Path) -> None:
    download_shard(from_hub(tmp_path), TRAIN, log=quiet)
    hub.commit = "0" * 40
    other = from_hub(tmp_path, revision=hub.commit)
    download_shard(other, TRAIN, log=quiet)
    assert len(hub.gets()) == 1
    assert list(text_shards(other)[0].open()) == documents(120, seed=1)


def test_a_lost_receipt_costs_a_question_and_no_byte(hub: HubServer, tmp_path: Path) -> None:
    data = from_hub(tmp_path)
    download_shard(data, TRAIN, log=quiet)
    receipt = tmp_path / "downloads/c4/receipts" / f"{TRAIN}.json"
    before = receipt.read_bytes()
    receipt.unlink()
    download_shard(data, TRAIN, log=quiet)
    assert receipt.read_bytes() == before
    assert len(hub.gets()) == 1


def test_no_receipt_of_what_did_not_come(hub: HubServer, tmp_path: Path) -> None:
    hub.faults += [fault.status(503)] * 2
    with pytest.raises(UnreachableError):
        download_shard(from_hub(tmp_path), TRAIN, log=quiet, patience=Patience(fruitless=2, wait=lambda seconds: None))
    assert not (tmp_path / "downloads/c4/receipts").exists()


def test_a_shard_beyond_the_studys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--shard train-00002-of-01024: not among the study's 10 shards"):
        download_shard(from_hub(tmp_path), "train-00002-of-01024", log=quiet)


def test_more_shards_than_c4_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1025 wanted, but allenai/c4 has 1024 training shards"):
        source_identity(from_hub(tmp_path, train_shards=1025))


def test_fewer_shards_of_a_folder(tmp_path: Path) -> None:
    text = write_c4(tmp_path)
    names = [shard.name for shard in text_shards(c4_config(text, train_shards=1))]
    assert names == [TRAIN, "validation-00000-of-00008"]
    assert len(source_identity(c4_config(text, train_shards=1))["shards"]) == 2
    with pytest.raises(ValueError, match=r"train_shards: 3 wanted, but .* has 2 training shards"):
        text_shards(c4_config(text, train_shards=3))


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_a_tokenizer_needs_a_tokenizer_json(hub: HubServer, tmp_path: Path) -> None:
    hub.add("model", "some/sentencepiece", "tokenizer_config.json", b"{}", large=False)
    with pytest.raises(ValueError, match=r"some/sentencepiece has no tokenizer\.json; convert it"):
        download_tokenizer(from_hub(tmp_path), tokenizer_from_hub(repo="some/sentencepiece"), log=quiet)


def test_a_tokenizer_that_changed_since_is_refused(hub: HubServer, tmp_path: Path) -> None:
    data = from_hub(tmp_path)
    download_tokenizer(data, tokenizer_from_hub(), log=quiet)
    folder = tmp_path / "downloads/tokenizers/hf-internal-testing--llama-tokenizer" / COMMIT
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<s>"}')
    with pytest.raises(ValueError, match=r"tokenizer_config.json: not the file that was fetched; run  mpadam download"):
        make_tokenizer(data, tokenizer_from_hub(), tmp_path / "made")
    download_tokenizer(data, tokenizer_from_hub(), log=quiet)
    assert make_tokenizer(data, tokenizer_from_hub(), tmp_path / "made").eos_id == 2


def test_d4_a_separator_can_be_named_where_the_tokenizer_names_none(hub: HubServer, tmp_path: Path) -> None:
    """D4: as for t5-base, whose files leave it to transformers."""
    hub.add("model", REPO, "tokenizer_config.json", b'{"model_max_length": 512}', large=False)
    data = from_hub(tmp_path)
    download_tokenizer(data, tokenizer_from_hub(), log=quiet)
    with pytest.raises(ValueError, match=r"names no end-of-text token.*eos_token: </s>"):
        make_tokenizer(data, tokenizer_from_hub(), tmp_path / "made")
    named = tokenizer_from_hub(eos_token="</s>")
    assert make_tokenizer(data, named, tmp_path / "made").eos_id == 2
    assert load_tokenizer(tmp_path / "made").eos_id == 2
    assert tokenizer_identity(named) != tokenizer_identity(tokenizer_from_hub())
    with pytest.raises(ValueError, match="eos_token: '<end>' is not in the vocabulary"):
        make_tokenizer(data, tokenizer_from_hub(eos_token="<end>"), tmp_path / "other")


# --- how much is needed ----------------------------------------------------------------------------------------------


def study(**changes: Any) -> StudyConfig:
    """The study of config.yaml, of C4 from the hub."""
    data = {"source": "c4_hub", "path": None, "revision": COMMIT, **changes.pop("data", {})}
    return parse_study(merge(read_yaml(ROOT / "config.yaml"), {"data": data, **changes}))


def test_shards_are_planned_from_the_largest_budget() -> None:
    """350m at 8x: 60,000 steps of 512 documents, eight times; about 356,317 documents per shard."""
    config = study()
    assert largest_budget(config) == 8 * 60_000 * 512 == 245_760_000
    shards = planned(config).train_shards
    assert shards is not None
    assert 245_760_000 < shards * 364_868_892 / 1024 < 1.01 * 245_760_000
    assert shards == make_plan(config).data.shards


def test_a_small_budget_needs_one_shard() -> None:
    config = study(budgets=[1], grids=[{"name": "one", "models": ["60m"], "budgets": [1]}])
    assert largest_budget(config) == 10_000 * 512
    assert planned(config).train_shards == 15


def test_a_number_of_shards_that_is_given_stands() -> None:
    assert planned(study(data={"train_shards": 1024})).train_shards == 1024


def test_a_budget_beyond_c4_is_refused_with_the_numbers() -> None:
    models = {"350m": {"steps_1x": 100_000}}
    with pytest.raises(ConfigError, match=r"needs 409,600,000 training sequences.*364,868,892 sequences.*epochs: 2"):
        planned(study(models=models))
    assert planned(study(models=models, data={"epochs": 2})).train_shards in range(575, 585)


def test_other_sources_need_no_plan() -> None:
    config = load_study([ROOT / "config.yaml", ROOT / "studies" / "smoke.yaml"])
    assert planned(config) == config.data


# --- commands --------------------------------------------------------------------------------------------------------


def request(data: DataConfig, tokenizer: TokenizerConfig) -> list[str]:
    return ["--request", json.dumps({"data": data.model_dump(), "tokenizer": tokenizer.model_dump()})]


def test_command_fetches_a_part_or_all(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = request(from_hub(tmp_path), tokenizer_from_hub())
    receipts = tmp_path / "downloads/c4/receipts"
    assert cli.main(["download", *arguments, "--shard", TRAIN]) == 0
    assert [path.stem for path in receipts.iterdir()] == [TRAIN]
    assert cli.main(["download", *arguments, "--tokenizer"]) == 0
    assert cli.main(["download", *arguments]) == 0
    assert len(list(receipts.iterdir())) == 10
    printed = capsys.readouterr().out
    assert f"en/c4-train.00000-of-01024.json.gz of allenai/c4 from {hub.endpoint}" in printed
    assert "MB/s" in printed
    assert cli.main(["data", *arguments, "--out", str(tmp_path / "data")]) == 0


def test_command_says_later_where_the_hub_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*arguments: Any, **keys: Any) -> dict[str, Any]:
        raise UnreachableError("hub: HTTP 503, 10 times in a row")

    monkeypatch.setattr("mpadam.data.download.fetch", unreachable)
    assert cli.main(["download", *request(from_hub(tmp_path), bpe()), "--shard", TRAIN]) == 75
    assert capsys.readouterr().err == "mpadam download: hub: HTTP 503, 10 times in a row\n"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (["--shard", TRAIN], "data.source is 'builtin': no shard to download"),
        (["--tokenizer"], "tokenizer.source is 'bpe': nothing to download"),
    ],
)
def test_command_with_nothing_to_fetch(what: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["download", *request(DataConfig(source="builtin"), bpe()), *what]) == 2
    assert message in capsys.readouterr().err
