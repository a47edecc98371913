"""Fetches one file from the hub, complete or not at all, in as many pieces as it takes, and checks it.

`huggingface_hub` supplies addresses (HF_ENDPOINT, mirrors), credentials, metadata and the HTTP client. Its own download
starts again from the first byte after a kill, compares no checksum, and does not wait as long as a server asks by a
date. The bytes are therefore fetched here, into a partial file next to the target, which a later call continues. Size
and checksum are those that the hub states (SHA-256 of large files, git's SHA-1 of small ones); only a file that has
both gets the target's name.

After a failure that may pass (HTTP 408, 425, 429, 500 to 599, a stall, a reset) the fetch waits, twice as long each
time or longer if the server asks for it, and tries again. Any other failure (no such file, no access, a certificate
that is not trusted, a proxy that requires a password) ends the fetch with one line that says what to do.
"""

import fcntl
import hashlib
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, get_session

from mpadam.atomic import UNSUPPORTED, sync
from mpadam.presence import is_there
from mpadam.stored import sha256

Log = Callable[[str], None]
CHUNK = 2**20  # bytes written at once
REPORT_EVERY = 64e6  # bytes
PASSING = frozenset({408, 425, 429, *range(500, 600)})  # HTTP statuses after which a later try may succeed
DAMAGED_AT_MOST = 3  # complete files with a wrong checksum, before the server's copy is taken to be wrong


class UnreachableError(ConnectionError):
    """The hub does not serve the file at present; the bytes received are kept, and a later call continues."""


class NotOnHubError(FileNotFoundError):
    """The hub answers that it has no such file."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository at a commit, e.g. HubFile("allenai/c4", "dataset", "1588ec...", "en/c4-train....gz")."""

    repo: str
    kind: Literal["dataset", "model"]
    revision: str
    name: str


@dataclass(frozen=True)
class Patience:
    """When to give up, and how to wait.

    fruitless: tries in a row without progress, after which the fetch gives up. stall: seconds without a byte that end a
    try. first, longest: seconds between tries, doubling. longest_asked: seconds that a server may ask to wait.
    """

    fruitless: int = 10
    stall: float = 60.0
    first: float = 1.0
    longest: float = 300.0
    longest_asked: float = 3600.0
    wait: Callable[[float], None] = time.sleep


PATIENT = Patience()


@dataclass(frozen=True)
class Known:
    """What the hub states about a file. checksum: SHA-256, or git's SHA-1, in hexadecimal digits."""

    bytes: int
    checksum: str


class _PassingError(Exception):
    """Why a try failed, and how many seconds the server asks to wait."""

    def __init__(self, reason: str, asked: float | None = None) -> None:
        super().__init__(reason)
        self.asked = asked


def fetch(file: HubFile, target: Path, *, log: Log, patience: Patience = PATIENT) -> dict[str, Any]:
    """Fetch `file` to `target`, unless it is there; returns its receipt: repo, revision, file, bytes, sha256.

    Raises NotOnHubError where the hub has no such file, ValueError for any other failure that waiting cannot mend, and
    UnreachableError where waiting did not help.
    """
    known = _patiently(file, patience, log, lambda: _ask(file, patience.stall), lambda: 0)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{known.checksum[:12]}.partial")
    with _exclusive(partial, log) as out:
        if _is(target, known):
            partial.unlink()
            log(f"{target}: already there")
        else:
            transfer = _Transfer(file, known, out, patience.stall, log)
            _patiently(file, patience, log, transfer.attempt, out.tell)
            sync(out.fileno())
            partial.replace(target)
    return {
        "repo": file.repo,
        "revision": file.revision,
        "file": file.name,
        "bytes": known.bytes,
        "sha256": sha256(target),
    }


def endpoint() -> str:
    """The address of the server, without anything secret in it."""
    return str(httpx2.URL(constants.ENDPOINT).copy_with(username=None, password=None, query=None))


def _patiently(
    file: HubFile, patience: Patience, log: Log, attempt: Callable[[], Known | None], reached: Callable[[], int]
) -> Any:
    """The result of `attempt`, which is repeated until `patience.fruitless` tries in a row make no progress.

    reached: how far the attempts have come, in bytes.
    """
    fruitless, furthest = 0, reached()
    while True:
        try:
            return attempt()
        except _PassingError as error:
            fruitless = 1 if reached() > furthest else fruitless + 1
            furthest = max(furthest, reached())
            if fruitless >= patience.fruitless:
                raise UnreachableError(
                    f"{file.name} of {file.repo}: {endpoint()}: {error}, {fruitless} times in a row; the bytes "
                    "received are kept: run the command again when the server answers, or set HF_ENDPOINT to a mirror"
                ) from None
            seconds = _seconds(error.asked, fruitless, patience)
            log(f"{file.name}: {error}; waiting {seconds:.0f} s")
            patience.wait(seconds)


def _seconds(asked: float | None, fruitless: int, patience: Patience) -> float:
    own = min(patience.first * 2 ** (fruitless - 1), patience.longest)
    return max(own, min(asked or 0.0, patience.longest_asked))  # asked for none, or by a clock that is behind: the own


# --- what the hub says of a file -------------------------------------------------------------------------------------


def _ask(file: HubFile, stall: float) -> Known:
    """Size and checksum of a file, from the headers that its address answers with."""
    _session()
    try:
        metadata = get_hf_file_metadata(_url(file), timeout=stall, library_name="mpadam")
    except OfflineModeIsEnabled:
        raise ValueError(f"{file.name}: HF_HUB_OFFLINE is set, and the file is not here yet; unset it") from None
    except HfHubHTTPError as error:
        raise _judged(file, error.response) from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
        raise ValueError("HF_ENDPOINT is no web address; write e.g.  https://huggingface.co") from None
    except UnicodeEncodeError:
        raise ValueError("the token of the hub (HF_TOKEN) holds a letter that no token has; correct it") from None
    except httpx2.HTTPError as error:
        raise _failed(file, error) from None
    if metadata.commit_hash is None or metadata.etag is None or metadata.size is None:
        raise ValueError(
            f"{file.name}: {endpoint()} names no commit, checksum or size for it, as the hub does; set HF_ENDPOINT to "
            "a mirror that passes the hub's headers on, or unset it"
        )
    if metadata.commit_hash != file.revision:
        raise ValueError(f"{file.name}: asked for commit {file.revision}, {endpoint()} gives {metadata.commit_hash}")
    if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", checksum := metadata.etag.lower()):
        raise ValueError(f"{file.name}: {endpoint()} names {metadata.etag!r}, which is no SHA-256 and no git SHA-1")
    return Known(bytes=metadata.size, checksum=checksum)


def _url(file: HubFile) -> str:
    return hf_hub_url(file.repo, file.name, repo_type=file.kind, revision=file.revision)


def _judged(file: HubFile, response: httpx2.Response) -> Exception:
    """The error for an HTTP status: one to try again after, or the user's."""
    status = response.status_code
    if status == 407:
        return _refused_by_proxy(file, status)
    if status in PASSING:
        return _PassingError(f"HTTP {status}", _asked(response))
    what = f"{file.name} of {file.repo} at {file.revision}: {endpoint()} answers {status}"
    if status == 404:
        return NotOnHubError(f"{what}: no such file, repository or commit; correct repo and revision")
    access = "correct the name, or accept its terms on the hub and log in with  hf auth login"
    return ValueError(
        f"{what}; {access if status in (401, 403) else 'set HF_ENDPOINT to a server that has it, or unset it'}"
    )


def _failed(file: HubFile, error: httpx2.HTTPError) -> Exception:
    """The error where no answer came: one to try again after, or the user's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ValueError(
                f"{file.name}: a certificate on the way to {endpoint()} is not trusted ({cause.verify_message}); set "
                "SSL_CERT_FILE to a PEM file that holds the root certificate, e.g. your company's"
            )
        cause = cause.__cause__ or cause.__context__
    answer = re.match(r"[0-9]{3}\b", str(error)) if isinstance(error, httpx2.ProxyError) else None
    if answer and int(answer[0]) not in PASSING:
        return _refused_by_proxy(file, int(answer[0]))
    if isinstance(error, httpx2.TimeoutException):  # whose own text may be empty
        return _PassingError("no byte for too long")
    return _PassingError(re.sub(r"(?<=//)[^/\s]*@|\?[^\s']*", "", str(error)) or type(error).__name__)  # no secrets


def _refused_by_proxy(file: HubFile, status: int) -> ValueError:
    remedy = "set HF_ENDPOINT to a mirror that it lets through, or HTTPS_PROXY to another proxy"
    if status == 407:
        variable = "HTTPS_PROXY" if endpoint().startswith("https:") else "HTTP_PROXY"
        remedy = f"give it a user and a password that it knows:  {variable}=http://USER:PASSWORD@HOST:PORT"
    return ValueError(f"{file.name}: the proxy on the way to {endpoint()} answers {status}; {remedy}")


def _session() -> httpx2.Client:
    """The client of huggingface_hub, which reads the certificates and proxies that the environment names when created.

    Raises ValueError where it cannot read them.
    """
    try:
        return get_session()
    except ImportError:
        raise ValueError(
            "a proxy in the environment (ALL_PROXY, HTTPS_PROXY, HTTP_PROXY) is a SOCKS proxy, which needs a package:  "
            "pip install socksio  ; or unset the variable"
        ) from None
    except OSError as error:
        named = os.environ.get("SSL_CERT_FILE", "")
        raise ValueError(
            f"SSL_CERT_FILE={named}: certificates cannot be read ({error}); set it to a PEM file, or unset it"
        ) from None
    except (ValueError, httpx2.InvalidURL):
        raise ValueError(  # without the error's text, which may hold a part of the password
            "a proxy in ALL_PROXY, HTTPS_PROXY, HTTP_PROXY is no address of one; write  http://USER:PASSWORD@HOST:PORT "
            " with / as %2F, @ as %40, # as %23 in user and password"
        ) from None


def _asked(response: httpx2.Response) -> float | None:
    """Seconds to wait by the header `Retry-After`, which holds a number or a date."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None


# --- its bytes -------------------------------------------------------------------------------------------------------


class _Transfer:
    """The transfer of a file's bytes into `out`, which may already hold the first of them."""

    def __init__(self, file: HubFile, known: Known, out: BinaryIO, stall: float, log: Log) -> None:
        self._file, self._known, self._out, self._stall, self._log = file, known, out, stall, log
        self._damaged = 0

    def attempt(self) -> None:
        """Request the missing bytes once, and check the file."""
        if self._out.tell() < self._known.bytes:
            self._append()
        size, checksum = self._out.tell(), _checksum(self._out, self._known)
        if (size, checksum) == (self._known.bytes, self._known.checksum):
            return
        self._damaged += 1
        _restart(self._out)
        found = f"came with {size:,} bytes and checksum {checksum}"
        promised = f"{endpoint()} promises {self._known.bytes:,} and {self._known.checksum}"
        if self._damaged < DAMAGED_AT_MOST:
            raise _PassingError(f"{found}, but {promised}")
        raise ValueError(
            f"{self._file.name}: {found}, {self._damaged} times, but {promised}; set HF_ENDPOINT to another mirror, or "
            "unset it"
        )

    def _append(self) -> None:
        """Append what one answer brings; from the first byte again where the answer starts there."""
        start, expected = self._out.tell(), self._known.bytes
        headers = {**build_hf_headers(library_name="mpadam"), "Accept-Encoding": "identity"}
        headers |= {"Range": f"bytes={start}-"} if start else {}
        url, stall = _url(self._file), self._stall
        try:
            with _session().stream("GET", url, headers=headers, timeout=stall, follow_redirects=True) as response:
                self._check(response, start)
                self._write(response.iter_raw(CHUNK))
        except httpx2.HTTPError as error:
            raise _failed(self._file, error) from None
        if self._out.tell() < expected:
            raise _PassingError(f"the answer ends at byte {self._out.tell():,} of {expected:,}")

    def _check(self, response: httpx2.Response, start: int) -> None:
        """Raise where an answer brings no bytes that continue the file; empty the file where they start it again."""
        status = response.status_code
        if status not in (200, 206, 416):
            raise _judged(self._file, response)
        if start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            _restart(self._out)
            if status == 206:
                raise _PassingError(f"asked for bytes from {start} on, got others")
        if status == 416:  # the partial file is longer than the server's
            raise _PassingError("HTTP 416")

    def _write(self, chunks: Iterator[bytes]) -> None:
        out, total = self._out, self._known.bytes
        begun, start = time.perf_counter(), out.tell()
        reported = start
        for chunk in chunks:
            out.write(chunk)
            out.flush()
            if out.tell() > total:
                return  # too long, which the check of the file reports
            if out.tell() - reported >= REPORT_EVERY or out.tell() == total:
                reported = out.tell()
                rate = (reported - start) / 1e6 / max(time.perf_counter() - begun, 1e-9)
                self._log(f"{self._file.name}: {reported / 1e6:.1f} of {total / 1e6:.1f} MB, {rate:.1f} MB/s")


def _restart(out: BinaryIO) -> None:
    out.seek(0)
    out.truncate()


def _checksum(content: BinaryIO, known: Known) -> str:
    """The checksum of an open file, of the kind that the hub states; the file is left at its end."""
    content.seek(0)
    git = len(known.checksum) == 40
    digest = hashlib.sha1(f"blob {known.bytes}\0".encode(), usedforsecurity=False) if git else hashlib.sha256()
    while chunk := content.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _is(path: Path, known: Known) -> bool:
    if not is_there(path) or path.stat().st_size != known.bytes:
        return False
    with path.open("rb") as file:
        return _checksum(file, known) == known.checksum


@contextmanager
def _exclusive(path: Path, log: Log) -> Iterator[BinaryIO]:
    """The file, created where it is missing, open at its end and locked against other processes.

    On a file system without locks a log line says so; a file that two processes have written fails its checksum.
    """
    while True:
        with path.open("ab+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                log(f"{path}: no locks on this file system ({error.strerror}): fetch a file by one process at a time")
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.seek(0, os.SEEK_END)
                yield file
                return
