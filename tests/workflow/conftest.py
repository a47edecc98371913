import fcntl
import json
from pathlib import Path

import pytest

from tests.workflow.toy import Toy, make_toy


@pytest.fixture(scope="session")
def finished_toy(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Toy:
    """The toy study, run once to its end; read only. Parallel test processes share one."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if worker_id != "master" else own) / "finished-toy"
    with Path(f"{shared}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = Path(f"{shared}.json")
        if not record.exists():
            done = make_toy(shared).snakemake()
            record.write_text(json.dumps({"code": done.returncode, "output": done.stdout + done.stderr}))
    content = json.loads(record.read_text())
    assert content["code"] == 0, content["output"]
    return Toy(shared)


@pytest.fixture
def toy(finished_toy: Toy, tmp_path: Path) -> Toy:
    """An own copy of the finished toy study."""
    return finished_toy.copy(tmp_path / "toy")
