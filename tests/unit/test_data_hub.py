"""Fetching a file: the real client against a hub on loopback, one fault at a time (D2)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import hub_server as fault
import pytest
from hub_fetching import CONTENT, FILE, NAME, SMALL, Fetching
from hub_server import COMMIT, HubServer
from huggingface_hub import constants

from mpadam.data.hub import NotOnHubError, Patience, UnreachableError, fetch

pytest_plugins = ["hub_fetching"]


def test_a_file_arrives_whole_with_its_receipt(hub: HubServer, fetching: Fetching) -> None:
    import hashlib

    receipt = fetching()
    assert fetching.target.read_bytes() == CONTENT
    assert receipt == {
        "repo": "allenai/c4",
        "revision": COMMIT,
        "file": NAME,
        "bytes": 50_000,
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
    }
    assert fetching.left == ["shard.json.gz"]
    assert fetching.waits == []


def test_a_small_file_is_checked_by_gits_sha1(hub: HubServer, fetching: Fetching) -> None:
    assert fetching(SMALL)["bytes"] == 21
    hub.add("model", SMALL.repo, SMALL.name, b'{"eos_token": "</s>"}', large=False)
    hub.files[False, SMALL.repo, SMALL.name].content = b'{"eos_token": "<s/>"}'
    fetching.target.unlink()
    with pytest.raises(
        ValueError, match=r"tokenizer_config.json: came with 21 bytes and checksum [0-9a-f]{40}, 3 times"
    ):
        fetching(SMALL)
    assert fetching.left == [f".shard.json.gz.{hub.files[False, SMALL.repo, SMALL.name].checksum[:12]}.partial"]


PASSING = {
    "429 with Retry-After": (fault.status(429, {"Retry-After": "7"}), [7.0], [None, None]),
    "429 without": (fault.status(429), [1.0], [None, None]),
    "503": (fault.status(503), [1.0], [None, None]),
    "reset before a byte": (fault.reset(0), [1.0], [None, None]),
    "reset in the middle": (fault.reset(20_000), [1.0], [None, "bytes=20000-"]),
    "ends early": (fault.shorter(10_000), [1.0], [None, "bytes=40000-"]),
    "wrong checksum": (fault.altered, [1.0], [None, None]),
    "web page": (fault.web_page, [1.0], [None, "bytes=54-"]),
    "too long": (fault.longer(5000), [1.0], [None, None]),
}


@pytest.mark.parametrize("name", PASSING)
def test_d2_a_fault_that_passes_is_waited_for(name: str, hub: HubServer, fetching: Fetching) -> None:
    """D2: back-off as long as asked, what came is kept, and the file is right in the end."""
    answer, waits, ranges = PASSING[name]
    hub.faults.append(answer)
    if name == "web page":  # its bytes are the start of nothing: the whole is wrong, and comes again
        waits, ranges = [1.0, 2.0], [*ranges, None]
    fetching()
    assert fetching.target.read_bytes() == CONTENT
    assert fetching.waits == waits
    assert hub.ranges() == ranges
    assert fetching.left == ["shard.json.gz"]


def test_d2_a_stall_ends_a_try_and_the_next_one_goes_on(hub: HubServer, fetching: Fetching) -> None:
    """D2: no byte for too long is said in these words, not as a missing file hours later."""
    hub.faults.append(fault.stall(30_000))
    fetching(stall=0.2)
    assert fetching.target.read_bytes() == CONTENT
    assert hub.ranges() == [None, "bytes=30000-"]
    assert f"{NAME}: no byte for too long; waiting 1 s" in fetching.lines


@pytest.mark.parametrize(
    "answer", [fault.status(429, {"Retry-After": "2"}), fault.status(503), fault.reset(0)], ids=["429", "503", "reset"]
)
def test_d2_metadata_is_waited_for_too(answer: fault.Fault, hub: HubServer, fetching: Fetching) -> None:
    hub.faults_of_hub += [answer, answer]
    fetching()
    assert fetching.target.read_bytes() == CONTENT
    assert len(fetching.waits) == 2


PASSING_STATUSES = [408, 425, 429, 500, 501, 502, 503, 504, 505, 507, 508, 511, *range(520, 531), 598, 599]
FINAL_STATUSES = [400, 401, 402, 403, 404, 405, 407, 410, 418, 421, 451]


def test_n14_every_status_that_passes_is_waited_for_as_long_as_it_asks(hub: HubServer, fetching: Fetching) -> None:
    """N14: a proxy's 520 to 529 too, of metadata and of bytes; what waiting cannot better ends at once."""
    for status in PASSING_STATUSES:
        hub.faults_of_hub += [fault.status(status, {"Retry-After": str(status)}), fault.status(status)]
        hub.faults += [fault.status(status, {"Retry-After": str(status)}), fault.status(status)]
    fetching(fruitless=2 * len(PASSING_STATUSES) + 1)
    assert fetching.target.read_bytes() == CONTENT
    assert [wait for wait in fetching.waits if wait >= 400] == PASSING_STATUSES * 2
    assert len(fetching.waits) == 4 * len(PASSING_STATUSES)


@pytest.mark.parametrize("faults", ["faults_of_hub", "faults"])
def test_n14_no_other_status_is_waited_for(faults: str, hub: HubServer, fetching: Fetching) -> None:
    for status in FINAL_STATUSES:
        getattr(hub, faults).append(fault.status(status))
        with pytest.raises((ValueError, FileNotFoundError), match=f"answers {status}"):
            fetching()
    assert fetching.waits == []


def test_d2_waits_double_up_to_a_limit_and_bytes_start_them_anew(hub: HubServer, fetching: Fetching) -> None:
    hub.faults += [fault.status(503)] * 4 + [fault.reset(10_000)] + [fault.status(503)] * 2
    patience = Patience(fruitless=6, longest=5.0, wait=fetching.waits.append)
    fetch(FILE, fetching.target, log=fetching.lines.append, patience=patience)
    assert fetching.waits == [1, 2, 4, 5, 1, 2, 4]


def test_d2_a_long_wait_asked_for_is_granted_within_reason(hub: HubServer, fetching: Fetching) -> None:
    late = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)
    hub.faults += [fault.status(429, {"Retry-After": value}) for value in (late, past, "999999", "soon")]
    fetching(fruitless=9)
    assert fetching.waits[0] == pytest.approx(100, abs=30)
    assert fetching.waits[1:] == [2.0, 3600.0, 8.0]


def test_n14_a_server_that_asks_for_no_wait_is_not_asked_again_at_once(hub: HubServer, fetching: Fetching) -> None:
    """Nor one whose date is past, by a clock that is behind: ten tries were over within a second."""
    hub.faults += [fault.status(503, {"Retry-After": value}) for value in ("0", "Wed, 21 Oct 2015 07:28:00 GMT")]
    fetching()
    assert fetching.waits == [1.0, 2.0]


def test_d2_giving_up_keeps_what_came_and_the_next_call_goes_on(hub: HubServer, fetching: Fetching) -> None:
    """D2: else a clear error: who did not answer, how often, what to do; the target does not exist."""
    hub.faults += [fault.reset(20_000), *[fault.status(503)] * 3]
    with pytest.raises(UnreachableError, match=rf"{NAME} of allenai/c4: {hub.endpoint}: HTTP 503, 3 times in a row"):
        fetching()
    assert not fetching.target.exists()
    fetching()
    assert fetching.target.read_bytes() == CONTENT
    assert hub.ranges()[-1] == "bytes=20000-"


def test_d2_nobody_there(hub: HubServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:1/{repo_id}/{revision}/{filename}")
    with pytest.raises(UnreachableError, match="refused"):
        fetching()
    assert fetching.waits == [1, 2]


@pytest.mark.parametrize(
    ("answer", "found"),
    [(fault.altered, "50,000 bytes"), (fault.longer(7), "50,007 bytes")],
    ids=["wrong checksum", "wrong length"],
)
def test_d2_a_damaged_copy_is_no_file(answer: fault.Fault, found: str, hub: HubServer, fetching: Fetching) -> None:
    hub.faults += [answer] * 3
    message = rf"{NAME}: came with {found} and checksum [0-9a-f]{{64}}, 3 times, but {hub.endpoint} promises 50,000"
    with pytest.raises(ValueError, match=message):
        fetching(fruitless=10)
    assert not fetching.target.exists()


def test_d2_a_server_whose_file_is_shorter_than_it_says(hub: HubServer, fetching: Fetching) -> None:
    hub.faults += [fault.shorter(7)] * 9
    with pytest.raises(UnreachableError, match=r"HTTP 416|the answer ends at byte 49,993 of 50,000"):
        fetching()
    assert not fetching.target.exists()


def test_a_server_that_ignores_ranges(hub: HubServer, fetching: Fetching) -> None:
    hub.faults += [fault.reset(20_000), fault.range_ignored]
    fetching()
    assert fetching.target.read_bytes() == CONTENT


def test_a_gz_file_is_not_unpacked_on_the_way(hub: HubServer, fetching: Fetching) -> None:
    import gzip

    content = gzip.compress(CONTENT)
    hub.add("dataset", FILE.repo, NAME, content)
    hub.faults.append(fault.labelled_gzip)
    fetching()
    assert fetching.target.read_bytes() == content


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (fault.status(404, {"X-Error-Code": "EntryNotFound"}), NotOnHubError, "answers 404: no such file"),
        (fault.status(404, {"X-Error-Code": "RevisionNotFound"}), NotOnHubError, "correct repo and revision"),
        (fault.status(401), ValueError, "answers 401; correct the name, or accept its terms"),
        (fault.status(403, {"X-Error-Code": "GatedRepo"}), ValueError, "log in with  hf auth login"),
        (fault.status(407), ValueError, "answers 407; .* HTTP_PROXY=http://USER:PASSWORD@HOST:PORT"),
        (fault.status(410), ValueError, "answers 410; set HF_ENDPOINT to a server that has it"),
        (fault.web_page, ValueError, "names no commit, checksum or size"),
        (fault.status(200, {"X-Repo-Commit": COMMIT, "ETag": '"abc"'}), ValueError, "'abc', which is no SHA-256"),
        (fault.status(200, {"X-Repo-Commit": "0" * 40, "ETag": '"1"'}), ValueError, f"asked for commit {COMMIT}"),
    ],
)
def test_what_waiting_cannot_mend_ends_at_once(
    answer: fault.Fault, error: type[Exception], message: str, hub: HubServer, fetching: Fetching
) -> None:
    hub.faults_of_hub.append(answer)
    with pytest.raises(error, match=message) as caught:
        fetching()
    assert "\n" not in str(caught.value)
    assert len(hub.asked) == 1
    assert fetching.left == []


def test_what_is_there_is_not_fetched_again(hub: HubServer, fetching: Fetching) -> None:
    before = fetching()
    assert fetching() == before
    assert len(hub.gets()) == 1
    assert fetching.left == ["shard.json.gz"]


def test_what_is_there_but_damaged_is_fetched_again(hub: HubServer, fetching: Fetching) -> None:
    fetching()
    fetching.target.write_bytes(b"x" + CONTENT[1:])
    fetching()
    assert fetching.target.read_bytes() == CONTENT


def test_a_partial_file_of_another_version_is_not_continued(hub: HubServer, fetching: Fetching) -> None:
    hub.faults += [fault.reset(20_000), *[fault.status(503)] * 3]
    with pytest.raises(UnreachableError):
        fetching()
    hub.add("dataset", FILE.repo, NAME, CONTENT[::-1])
    fetching()
    assert fetching.target.read_bytes() == CONTENT[::-1]
    assert hub.ranges()[-1] is None


def test_d2_two_processes_fetch_a_file_once(hub: HubServer, fetching: Fetching) -> None:
    """D2: one downloader. The first answer is held back until the other has asked what the file is, too."""
    locked, asked_twice = threading.Event(), threading.Event()

    def held(handler: Any, content: bytes) -> None:
        locked.set()
        assert asked_twice.wait(30)
        fault.whole(handler, content)

    def second(handler: Any, content: bytes) -> None:
        handler.resolve()
        asked_twice.set()

    hub.faults.append(held)
    first = threading.Thread(target=fetching)
    first.start()
    assert locked.wait(30)  # the first has the lock, and waits for bytes
    hub.faults_of_hub.append(second)
    other = Fetching(fetching.target.parents[1])
    other()
    first.join()
    assert len(hub.gets()) == 1
    assert fetching.target.read_bytes() == CONTENT
    assert fetching.left == ["shard.json.gz"]
    assert other.lines[-1] == f"{other.target}: already there"


KILLED = """
import os, signal, sys
from pathlib import Path
from mpadam.data import hub
from mpadam.data.download import download_tokenizer
from mpadam.data.hub import HubFile, fetch

class Deadly:
    def __init__(self, file):
        self._file = file
    def __getattr__(self, name):
        return getattr(self._file, name)
    def flush(self):
        self._file.flush()
        if self._file.tell() >= 20_000:
            os.kill(os.getpid(), signal.SIGKILL)

hub.CHUNK = 1000
init = hub._Transfer.__init__
hub._Transfer.__init__ = lambda self, file, known, out, stall, log: init(self, file, known, Deadly(out), stall, log)
fetch(HubFile("allenai/c4", "dataset", sys.argv[2], sys.argv[3]), Path(sys.argv[1]), log=print)
"""


def test_d9_a_killed_download_goes_on_where_it_was(hub: HubServer, fetching: Fetching) -> None:
    """D9: SIGKILL in the middle leaves no file of that name; the next call fetches the rest alone."""
    import os

    command = [sys.executable, "-c", KILLED, str(fetching.target), COMMIT, NAME]
    done = subprocess.run(command, env={**os.environ, "HF_ENDPOINT": hub.endpoint}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not fetching.target.exists()
    fetching()
    assert fetching.target.read_bytes() == CONTENT
    assert hub.ranges() == [None, "bytes=20000-"]
    assert fetching.left == ["shard.json.gz"]
