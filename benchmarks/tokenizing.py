"""Tokenizing against datasets.map on the same text and tokenizer: MB/s, their ratio, peak memory; and reading batches.

    python benchmarks/tokenize.py
    python benchmarks/tokenize.py --text /data/c4 --tokenizer /data/tokenizers/llama --megabytes 400 --repeats 5

Two shards of English are written, documents of the built-in corpus or of a folder in C4's layout, each with its words
turned round so that none repeats. Then, in turn and each in a process of its own:

    mpadam     tokenize_all, two shards at a time: from .json.gz to token files with checksums
    datasets   Dataset.map(batched=True, num_proc=2), from Arrow, where the text lies already, to Arrow

Both with the same cores; the tokens are compared. Memory is the largest sum of PSS over a process and its children.
Reading is timed on the token files, and set against a step of the 60m model on an H100 as `mpadam plan` estimates it.
Exit code 1 where mpadam is the slower.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpadam.data import TokenData, TrainBatches
from mpadam.data.builtin import shards as builtin_shards
from mpadam.data.sources import text_shards
from mpadam.data.stages import assemble, make_tokenizer, tokenize_all
from mpadam.plan.assumptions import GPUS
from mpadam.plan.cost import Shape, pass_seconds
from mpadam.study.config import DataConfig, ModelConfig, TokenizerConfig

WORKERS = 2
BATCH, LENGTH = 512, 256
MODEL = ModelConfig(hidden_size=512, intermediate_size=1376, layers=8, heads=8, steps_1x=10_000)


def main() -> int:
    args = arguments()
    if args.contestant:
        print(json.dumps(CONTESTANTS[args.contestant](args.folder)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_text(folder, args)
        results: dict[str, list[dict[str, Any]]] = {contestant: [] for contestant in CONTESTANTS}
        for repeat in range(args.repeats):
            for contestant, found in results.items():
                found.append(timed(contestant, folder))
                report(f"{repeat + 1}", contestant, found[-1], size)
        hashes = {found[0]["tokens"] for found in results.values()}
        assert len(hashes) == 1, "the two do not give the same tokens"
        ratios = [b["seconds"] / a["seconds"] for a, b in zip(*results.values(), strict=True)]
        cpu = [b["cpu"] / a["cpu"] for a, b in zip(*results.values(), strict=True)]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"mpadam is {statistics.median(ratios):.2f} times as fast (each run: {each})")
        print(f"and takes 1/{statistics.median(cpu):.2f} of the CPU time; the tokens are the same")
        reading(folder)
    return int(statistics.median(ratios) < 1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="folder in C4's layout whose documents to use (default: built-in)")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json (default: a BPE of 8,192 tokens)")
    parser.add_argument("--megabytes", type=float, default=60, help="of text, in all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- text ------------------------------------------------------------------------------------------------------------


def data_config(folder: Path) -> DataConfig:
    return DataConfig(source="c4_folder", path=str(folder / "text"), sequence_length=LENGTH, validation_tokens=10_000)


def write_text(folder: Path, args: argparse.Namespace) -> int:
    """Two training shards and a small validation shard; returns the training text's bytes."""
    source = DataConfig(source="c4_folder", path=str(args.text)) if args.text else None
    shards = text_shards(source) if source else builtin_shards(DataConfig(source="builtin"))
    texts = [text for shard in shards if shard.split == "train" for text in shard.open()]
    (folder / "text" / "en").mkdir(parents=True)
    documents = turned(texts)
    share = args.megabytes * 1e6 / WORKERS
    size = sum(write_shard(folder, f"train.{number:05d}-of-01024", documents, share) for number in range(WORKERS))
    held_out = (f"Held out: {text}" for text in documents)  # equal to no training text, which would be left out
    write_shard(folder, "validation.00000-of-00008", held_out, 2e5)
    given = args.tokenizer and TokenizerConfig(source="folder", path=str(args.tokenizer))
    tokenizer = given or TokenizerConfig(source="bpe", vocab_size=8192)
    (folder / "tokenizer.json").write_text(tokenizer.model_dump_json())
    make_tokenizer(data_config(folder), tokenizer, folder / "data" / "tokenizer")
    return size


def turned(texts: list[str]) -> Iterator[str]:
    """Documents without end, each a drawn text with its words turned round."""
    draw = random.Random(0)
    while True:
        words = draw.choice(texts).split(" ")
        start = draw.randrange(len(words))
        yield " ".join(words[start:] + words[:start])


def write_shard(folder: Path, name: str, documents: Iterator[str], size: float) -> int:
    written = 0
    with gzip.open(folder / "text" / "en" / f"c4-{name}.json.gz", "wt", encoding="utf-8", compresslevel=6) as file:
        while written < size:
            text = next(documents)
            written += len(text.encode())
            file.write(json.dumps({"text": text}) + "\n")
    return written


# --- the two ---------------------------------------------------------------------------------------------------------


def run_mpadam(folder: Path) -> dict[str, Any]:
    os.environ["RAYON_NUM_THREADS"] = "1"
    data, out = data_config(folder), folder / "data"
    before = times()
    tokenize_all(data, out, workers=WORKERS, log=print_to_stderr)
    after = times()
    tokenizer = TokenizerConfig.model_validate_json((folder / "tokenizer.json").read_text())
    assemble(data, tokenizer, out)
    train = TokenData.open(out).train
    return spent(before, after) | {"tokens": digest(train.document(i)[:-1] for i in range(train.documents))}


def run_datasets(folder: Path) -> dict[str, Any]:
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "data" / "tokenizer" / "tokenizer.json"))
    files = sorted(map(str, (folder / "text" / "en").glob("c4-train*")))
    table = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(folder / "cache"))

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        encoded = tokenizer(
            batch["text"],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return {"input_ids": encoded["input_ids"]}

    before = times()
    mapped = table.map(
        encode, batched=True, num_proc=WORKERS, remove_columns=table.column_names, load_from_cache_file=False
    )
    return spent(before, times()) | {"tokens": digest(np.asarray(row["input_ids"]) for row in mapped)}


CONTESTANTS: dict[str, Callable[[Path], dict[str, Any]]] = {"mpadam": run_mpadam, "datasets": run_datasets}


def times() -> tuple[float, float]:
    """Now, and the CPU seconds of this process and of its children that have ended."""
    return time.perf_counter(), sum(os.times()[:4])


def spent(before: tuple[float, float], after: tuple[float, float]) -> dict[str, Any]:
    return {"seconds": after[0] - before[0], "cpu": after[1] - before[1]}


def digest(documents: Iterator[Any]) -> str:
    """Of all tokens, documents told apart by their lengths."""
    found = hashlib.sha256()
    for document in documents:
        found.update(len(document).to_bytes(8, "little") + np.asarray(document, "<u4").tobytes())
    return found.hexdigest()


def print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


# --- measuring -------------------------------------------------------------------------------------------------------


def timed(contestant: str, folder: Path) -> dict[str, Any]:
    """What a contestant says of itself, and the memory it is seen to use."""
    for shard in (folder / "data" / "tokens").glob("*"):
        (shard / "shard.json").unlink(missing_ok=True)  # so that mpadam does not find its work done
    command = [sys.executable, __file__, "--contestant", contestant, "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, sum(map(proportional_megabytes, family(process.pid))))
            time.sleep(0.05)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0, f"{' '.join(command)} failed"
    return json.loads(lines[-1]) | {"megabytes": peak}


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in family(int(child)))]


def proportional_megabytes(pid: int) -> float:
    """Memory of a process; pages that it shares count in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    return sum(int(line.split()[1]) / 1e3 for line in lines if line.startswith("Pss:"))


def report(repeat: str, contestant: str, found: dict[str, Any], size: int) -> None:
    rate = size / 1e6 / found["seconds"]
    print(
        f"{repeat} {contestant:9} {found['seconds']:7.2f} s {rate:7.1f} MB/s {found['cpu']:7.2f} CPU s "
        f"{found['megabytes']:7.0f} MB",
        flush=True,
    )


def reading(folder: Path) -> None:
    """Milliseconds a batch of the paper's shape, from memory maps that are in memory."""
    data = TokenData.open(folder / "data")
    step = BATCH * LENGTH * pass_seconds(Shape(MODEL, 32_000, LENGTH), None, GPUS["h100"], compiled=True)
    for sequences in ("truncate_pad", "pack"):
        batches = TrainBatches(data, sequences=sequences, sequence_length=LENGTH, global_batch_size=BATCH, seed=0)
        seconds = []
        for number in range(120):
            start = time.perf_counter()
            batches.batch(number)
            seconds.append(time.perf_counter() - start)
        middle = statistics.median(seconds[20:])
        print(
            f"{sequences}: {1e3 * middle:.2f} ms a batch of {BATCH} x {LENGTH}, {middle / step:.1%} of a 60m step of "
            f"{1e3 * step:.0f} ms (estimated, one H100)"
        )


if __name__ == "__main__":
    sys.exit(main())
