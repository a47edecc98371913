"""Token files and their manifest: whole or absent, the same bytes each time, checked when opened, made by jobs too."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data_samples import bpe, c4_config, documents, files_below, prepared, quiet, write_c4, write_shard

from mpadam import cli
from mpadam.data import TokenData
from mpadam.data.stages import assemble, make_tokenizer, prepare, tokenize_one
from mpadam.study.text import DataConfig

SHARDS = ("validation-00000-of-00008", "train-00001-of-01024", "train-00000-of-01024")

KILLED = """
import os, signal, sys
from pathlib import Path
from mpadam.data import tokens
from mpadam.data.stages import prepare
from mpadam.study.text import DataConfig, TokenizerConfig

append = tokens._append
left = int(sys.argv[3])

def append_until_killed(*arguments):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    append(*arguments)

tokens._append = append_until_killed
tokens.BATCH_BYTES = 500  # so that a shard is written in many pieces
data = DataConfig(source="c4_folder", path=sys.argv[1], sequences="pack", sequence_length=16)
prepare(data, TokenizerConfig(source="bpe", vocab_size=300), Path(sys.argv[2]), log=print)
"""


@pytest.mark.parametrize("batches", [1, 30, 70])
def test_d9_a_killed_preparation_is_no_data_and_the_next_one_is_whole(batches: int, tmp_path: Path) -> None:
    """D9: SIGKILL in the validation shard, in the first and in the second training shard."""
    text = write_c4(tmp_path / "text")
    out, clean = tmp_path / "data", tmp_path / "clean"
    command = [sys.executable, "-c", KILLED, str(text), str(out), str(batches)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert out.is_dir()
    with pytest.raises(ValueError, match=r"no manifest\.json, so this is no prepared data"):
        TokenData.open(out)
    for folder in (out, clean):
        prepare(c4_config(text), bpe(), folder, log=quiet)
    assert files_below(out) == files_below(clean)


def test_d9_a_killed_shard_job_is_not_taken_for_a_shard(tmp_path: Path) -> None:
    """D9: what a killed `mpadam tokenize` leaves has no shard.json under the shard's name, and is swept away."""
    config, out = c4_config(write_c4(tmp_path / "text")), tmp_path / "data"
    make_tokenizer(config, bpe(), out / "tokenizer")
    left = out / "tokens" / f".{SHARDS[0]}.partial"
    left.mkdir(parents=True)
    (left / "tokens.bin").write_bytes(b"half")
    with pytest.raises(ValueError, match=f"not there yet; run  mpadam tokenize --shard {SHARDS[0]}  first"):
        tokenize_one(config, SHARDS[1], out, log=quiet)
    tokenize_one(config, SHARDS[0], out, log=quiet)
    assert [path.name for path in (out / "tokens").iterdir()] == [SHARDS[0]]


def test_prepared_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    text = write_c4(tmp_path / "text")
    for name in ("one", "two"):
        prepare(c4_config(text), bpe(), tmp_path / name, log=quiet)
    assert files_below(tmp_path / "one") == files_below(tmp_path / "two")


def test_a_matching_result_is_recognised(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in data.folder.rglob("*")}
    lines: list[str] = []
    manifest = prepare(c4_config(tmp_path / "text"), bpe(), data.folder, log=lines.append)
    assert manifest == data.manifest
    assert lines == [f"{data.folder}: already prepared ({manifest['fingerprint']})"]
    assert {path: path.stat().st_mtime_ns for path in data.folder.rglob("*")} == before


def test_a_damaged_result_is_made_again(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    whole = files_below(data.folder)
    tokens = data.folder / "tokens" / SHARDS[1] / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    prepare(c4_config(tmp_path / "text"), bpe(), data.folder, log=quiet)
    assert files_below(data.folder) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"sequence_length": 32}},
        {"data": {"sequences": "truncate_pad"}},
        {"data": {"validation_tokens": 100}},
        {"vocab_size": 301},
        {"text": True},
        {"split": True},
    ],
)
def test_fingerprint_changes_with_what_matters(change: dict[str, Any], tmp_path: Path) -> None:
    before = prepared(tmp_path).manifest
    text = tmp_path / "text"
    if "text" in change:
        write_shard(text, "train.00001-of-01024", [*documents(79, seed=2), "One other document."])
    if "split" in change:  # the same text, a document moved to the end of another shard
        write_shard(text, "train.00000-of-01024", documents(120, seed=1)[:-1])
        write_shard(text, "train.00001-of-01024", [*documents(80, seed=2), documents(120, seed=1)[-1]])
    config = c4_config(text, **change.get("data", {}))
    after = prepare(config, bpe(change.get("vocab_size", 300)), tmp_path / "data", log=quiet)
    assert after["fingerprint"] != before["fingerprint"]


def test_fingerprint_stays_with_what_does_not_matter(tmp_path: Path) -> None:
    """Another place, compression or number of epochs, and fields of C4 that nothing reads."""
    before = prepared(tmp_path).manifest
    moved = (tmp_path / "text").rename(tmp_path / "moved")
    import gzip

    path = moved / "en" / "c4-train.00000-of-01024.json.gz"
    lines = [json.dumps({"timestamp": "never", "text": text}) for text in documents(120, seed=1)]
    path.write_bytes(gzip.compress(("\n".join(lines)).encode(), compresslevel=1))
    after = prepare(c4_config(moved, epochs=3), bpe(), tmp_path / "data", log=quiet)
    assert after["shards"][0]["source"] != before["shards"][0]["source"]
    assert after["fingerprint"] == before["fingerprint"]


def test_jobs_a_shard_give_what_one_job_gives(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    config, out = c4_config(tmp_path / "text"), tmp_path / "jobs"
    make_tokenizer(config, bpe(), out / "tokenizer")
    for name in SHARDS:
        tokenize_one(config, name, out, log=quiet)
    assemble(config, bpe(), out)
    assert files_below(out) == files_below(data.folder)


def test_several_workers_give_the_same_bytes(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    request = json.dumps({"data": c4_config(tmp_path / "text").model_dump(), "tokenizer": bpe().model_dump()})
    command = [sys.executable, "-m", "mpadam", "data", "--request", request, "--workers", "3", "--out"]
    subprocess.run([*command, str(tmp_path / "workers")], check=True, capture_output=True)
    assert files_below(tmp_path / "workers") == files_below(data.folder)


def test_a_shard_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """Snakemake may ask for it again, after a move of the text or a lost record; token files and text are checked."""
    config, out = staged(tmp_path)
    lines: list[str] = []
    tokenize_one(config, SHARDS[2], out, log=lines.append)
    assert lines == [f"{SHARDS[2]}: already tokenized"]
    moved = (tmp_path / "text").rename(tmp_path / "moved")
    assert tokenize_one(c4_config(moved), SHARDS[2], out, log=lines.append)
    assert len(lines) == 2


@pytest.mark.parametrize("change", ["text of the same size", "a token", "another tokenizer", "another version"])
def test_a_shard_that_is_not_what_is_wanted_is_made_again(change: str, tmp_path: Path) -> None:
    config, out = staged(tmp_path)
    before = files_below(out / "tokens" / SHARDS[2])
    path = tmp_path / "text" / "en" / "c4-train.00000-of-01024.json.gz"
    tokens = out / "tokens" / SHARDS[2] / "tokens.bin"
    if change == "text of the same size":
        content = bytearray(path.read_bytes())
        content[4] ^= 1  # the date in the gzip header: another file, though with the same documents
        path.write_bytes(content)
    elif change == "a token":
        tokens.write_bytes(bytes(2) + tokens.read_bytes()[2:])
    elif change == "another tokenizer":
        make_tokenizer(config, bpe(310), out / "tokenizer")
    else:
        manifest = out / "tokens" / SHARDS[2] / "shard.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
    lines: list[str] = []
    tokenize_one(config, SHARDS[2], out, log=lines.append)
    assert "MB/s" in lines[0]
    assert (files_below(out / "tokens" / SHARDS[2]) == before) == (change in ("a token", "another version"))


def staged(folder: Path) -> tuple[DataConfig, Path]:
    """All stages but the last, in `folder`/data."""
    config, out = c4_config(write_c4(folder / "text")), folder / "data"
    make_tokenizer(config, bpe(), out / "tokenizer")
    for name in SHARDS:
        tokenize_one(config, name, out, log=quiet)
    return config, out


def test_assembling_needs_every_shard(tmp_path: Path) -> None:
    config, out = staged(tmp_path)
    shutil.rmtree(out / "tokens" / SHARDS[2])
    with pytest.raises(ValueError, match=rf"{SHARDS[2]}: no shard\.json, so these are no finished token files"):
        assemble(config, bpe(), out)
    assert not (out / "manifest.json").exists()


def test_assembling_refuses_shards_of_another_tokenizer(tmp_path: Path) -> None:
    config, out = staged(tmp_path)
    make_tokenizer(config, bpe(310), out / "tokenizer")
    with pytest.raises(ValueError, match=r"tokenizer: made with another vocab_size; run  mpadam tokenizer  again"):
        assemble(config, bpe(), out)
    with pytest.raises(ValueError, match=r"made with another tokenizer_fingerprint; run  mpadam tokenize --shard"):
        assemble(config, bpe(310), out)


def test_assembling_refuses_training_shards_made_before_the_validation_text_changed(tmp_path: Path) -> None:
    config, out = staged(tmp_path)
    write_shard(tmp_path / "text", "validation.00000-of-00008", documents(40, seed=99))
    with pytest.raises(ValueError, match=r"tokenizer: made with another text; run  mpadam tokenizer  again"):
        assemble(config, bpe(), out)
    make_tokenizer(config, bpe(), out / "tokenizer")
    with pytest.raises(ValueError, match=rf"{SHARDS[0]}: made with another source"):
        assemble(config, bpe(), out)
    tokenize_one(config, SHARDS[0], out, log=quiet)
    with pytest.raises(ValueError, match=r"train-00000-of-01024: made with another held_out"):
        assemble(config, bpe(), out)


def test_unknown_shard_is_an_error(tmp_path: Path) -> None:
    config = c4_config(write_c4(tmp_path / "text"))
    with pytest.raises(ValueError, match=r"--shard train-00009: the text has no such shard; it has 3: train-00000-of"):
        tokenize_one(config, "train-00009", tmp_path / "data", log=quiet)


def test_a_failing_shard_job_leaves_nothing(tmp_path: Path) -> None:
    text = write_c4(tmp_path / "text")
    config, out = c4_config(text), tmp_path / "data"
    make_tokenizer(config, bpe(), out / "tokenizer")
    path = text / "en" / "c4-validation.00000-of-00008.json.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="cut short"):
        tokenize_one(config, SHARDS[0], out, log=quiet)
    assert list((out / "tokens").iterdir()) == []


# --- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing, the manifest says"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"has \d+ bytes, the manifest says"),
    ],
)
@pytest.mark.parametrize("name", ["tokens.bin", "ends.bin"])
def test_opening_checks_sizes(name: str, damage: Any, message: str, tmp_path: Path) -> None:
    data = prepared(tmp_path)
    damage(data.folder / "tokens" / SHARDS[1] / name)
    with pytest.raises(ValueError, match=rf"{SHARDS[1]}/{name}: {message}.*run  mpadam data  again"):
        TokenData.open(data.folder)


def test_verifying_notices_one_changed_bit(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    path = data.folder / "tokens" / SHARDS[2] / "tokens.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    TokenData.open(data.folder)
    with pytest.raises(ValueError, match="its SHA-256 is not the manifest's"):
        TokenData.open(data.folder, verify=True)


def test_another_format_is_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    path = data.folder / "manifest.json"
    path.write_text(json.dumps({**data.manifest, "format": 0}))
    with pytest.raises(ValueError, match="format 0, this version reads 1"):
        TokenData.open(data.folder)


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_prepares_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = c4_config(write_c4(tmp_path / "text"))
    request = json.dumps({"data": config.model_dump(), "tokenizer": bpe().model_dump()})
    out = tmp_path / "results" / "study" / "data"
    assert cli.main(["data", "--request", request, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    manifest = TokenData.open(out).manifest
    assert f"{manifest['train_sequences']:,} sequences" in printed
    assert "MB/s" in printed
    assert cli.main(["data", "--request", request, "--out", str(out)]) == 0
    assert "already prepared" in capsys.readouterr().out


def test_stage_commands(tmp_path: Path) -> None:
    config = c4_config(write_c4(tmp_path / "text"))
    common = ["--request", json.dumps({"data": config.model_dump(), "tokenizer": bpe().model_dump()})]
    out = ["--out", str(tmp_path / "data")]
    assert cli.main(["tokenizer", *common, *out]) == 0
    assert cli.main(["data", "--assemble", *common, *out]) == 2
    for name in SHARDS:
        assert cli.main(["tokenize", "--shard", name, *common, *out]) == 0
    assert cli.main(["data", "--assemble", *common, *out]) == 0
    TokenData.open(tmp_path / "data", verify=True)


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        ("{", "--request: not JSON"),
        ("[]", '--request: write {"data": {...}, "tokenizer": {...}}'),
        ('{"data": {"source": "builtin"}}', '--request: write {"data": {...}, "tokenizer": {...}}'),
        ('{"data": {"source": "c5"}, "tokenizer": {"source": "bpe", "vocab_size": 300}}', "--request: data.source"),
        (
            '{"data": {"source": "builtin"}, "tokenizer": {"source": "bpe", "vocab_size": 9}}',
            "--request: tokenizer.vocab_size",
        ),
        ('{"data": {"source": "builtin"}, "tokenizer": {"source": "bpe"}}', "source 'bpe' needs vocab_size"),
        (
            '{"data": {"source": "c4_folder", "path": "no/where"}, "tokenizer": {"source": "bpe", "vocab_size": 300}}',
            "data.path: there is no folder no/where",
        ),
    ],
)
def test_bad_requests_are_one_line(
    request_text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "--request", request_text, "--out", str(tmp_path / "data")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mpadam data: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_preparing_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    write_c4(tmp_path / "text")
    program = (
        "import sys; from mpadam import cli; code = cli.main(sys.argv[1:]);"
        "assert code == 0; print(sorted({'torch', 'transformers', 'datasets', 'pandas'} & set(sys.modules)))"
    )
    request = json.dumps({"data": c4_config(tmp_path / "text").model_dump(), "tokenizer": bpe().model_dump()})
    command = [sys.executable, "-c", program, "data", "--request", request, "--out", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
