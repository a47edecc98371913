"""Several ranks in a test: forked children with a gloo group over a file, so that nothing is imported twice."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from mpadam.training.ranks import ALONE, Ranks
from mpadam.training.run import train_folder
from mpadam.training.stopping import Stopper


def run_ranks(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What `work` returns on each of `size` ranks; an error on one of them fails the test with its trace."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, size, Path(folder) / "store", work) for rank in range(size)]
        results = []
        for pid, reading in children:
            with os.fdopen(reading, "rb") as file:
                content = file.read()
            os.waitpid(pid, 0)
            results.append(pickle.loads(content) if content else (False, f"process {pid} died"))
    for ok, value in results:
        assert ok, value
    return [value for _, value in results]


def _fork(rank: int, size: int, store: Path, work: Callable[[Ranks], Any]) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            outcome = (True, in_group(rank, size, store, work))
        except BaseException:
            outcome = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as file:
            file.write(pickle.dumps(outcome))
        os._exit(0)
    os.close(writing)
    return pid, reading


def in_group(rank: int, size: int, store: Path, work: Callable[[Ranks], Any]) -> Any:
    """Run `work` in this process as one rank of a gloo group that meets at the file `store`."""
    if size == 1:
        return work(ALONE)
    torch.set_num_threads(1)  # a fork has none of the threads that its parent may have started, and would wait for them
    dist.init_process_group("gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size)
    try:
        return work(Ranks(rank, size, dist.group.WORLD))
    finally:
        dist.destroy_process_group()


def train_on(ranks: Ranks, folder: Path, *, stop: Stopper | None = None, **options: Any) -> int:
    """Train a folder as one of the ranks; returns the exit code."""
    torch.set_num_threads(1)
    return train_folder(folder, stop=stop or Stopper(), ranks=ranks, **options)
