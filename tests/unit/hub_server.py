"""A hub on this machine's loopback, as far as a client that downloads files can tell, with faults to switch on.

    with HubServer() as hub:
        hub.add("dataset", "allenai/c4", "en/c4-train.00000-of-01024.json.gz", content)
        hub.faults += [status(429, {"Retry-After": "3"}), reset(half)]       # of the next answers with bytes, in order

It answers HEAD and GET of `/<repo>/resolve/<commit>/<file>` with the headers that huggingface_hub looks at. Large files
are redirected to another port, as the hub does to its content network; ranges are served there.
"""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
_RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")

Fault = Callable[["_Handler", bytes], None]


@dataclass(frozen=True)
class Asked:
    """A request: `where` is hub or network."""

    where: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class _File:
    content: bytes
    large: bool
    checksum: str


@dataclass
class HubServer:
    """faults: each answers one GET for bytes, in its turn. faults_of_hub: the same for requests of metadata."""

    commit: str = COMMIT
    faults: list[Fault] = field(default_factory=list)
    faults_of_hub: list[Fault] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    files: dict[tuple[bool, str, str], _File] = field(default_factory=dict)

    def __enter__(self) -> HubServer:
        self._hub, self._network = (_serve(self, where) for where in ("hub", "network"))
        return self

    def __exit__(self, *error: object) -> None:
        for server in (self._hub, self._network):
            server.shutdown()
            server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._hub.server_address[1]}"

    @property
    def network(self) -> str:
        return f"http://127.0.0.1:{self._network.server_address[1]}"

    def add(self, kind: str, repo: str, name: str, content: bytes, *, large: bool = True) -> None:
        """Publish a file; small ones are served by the hub itself and named by git's SHA-1."""
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        checksum = hashlib.sha256(content).hexdigest() if large else git
        self.files[kind == "dataset", repo, name] = _File(content, large, checksum)

    def gets(self) -> list[Asked]:
        """The requests for bytes."""
        return [asked for asked in self.asked if asked.method == "GET" and asked.where == "network"]

    def ranges(self) -> list[str | None]:
        """The ranges these asked for."""
        return [asked.headers.get("range") for asked in self.gets()]


def _serve(hub: HubServer, where: str) -> ThreadingHTTPServer:
    handler = type("Handler", (_Handler,), {"hub": hub, "where": where})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer
    where: str

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.where == "hub" and not _RESOLVE.fullmatch(self.path):
            return self.send(404, {})  # whatever else the client would like to know
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.hub.asked.append(Asked(self.where, self.command, self.path, headers))
        if self.where == "network":
            content = next(f.content for f in self.hub.files.values() if self.path == f"/{f.checksum}")
            (self.hub.faults.pop(0) if self.hub.faults else whole)(self, content)
        elif self.hub.faults_of_hub:
            self.hub.faults_of_hub.pop(0)(self, b"")
        else:
            self.resolve()
        return None

    def resolve(self) -> None:
        """What the hub says of a file."""
        match = _RESOLVE.fullmatch(self.path)
        assert match
        key = (bool(match[1]), match[2], match[4])
        if match[3] != self.hub.commit:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        if key not in self.hub.files:
            return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.hub.commit})
        file = self.hub.files[key]
        named = {"X-Repo-Commit": self.hub.commit, "ETag": f'"{file.checksum}"'}
        if not file.large:
            return self.send(200, named, file.content)
        linked = {"X-Linked-Etag": f'"{file.checksum}"', "X-Linked-Size": str(len(file.content))}
        return self.send(302, {**named, **linked, "Location": f"{self.hub.network}/{file.checksum}"})

    def send(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def start(self, content: bytes) -> bytes:
        """Headers of an answer with bytes, as the range wants it; returns what has to follow."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(match[1]) if match else 0
        if first >= len(content):
            self.send(416, {"Content-Range": f"bytes */{len(content)}"})
            return b""
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(len(content) - first))
        if match:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        return content[first:]


# --- answers ---------------------------------------------------------------------------------------------------------


def whole(handler: _Handler, content: bytes) -> None:
    """What a sound server does."""
    handler.wfile.write(handler.start(content))


def status(code: int, headers: dict[str, str] | None = None) -> Fault:
    """Only a status, and perhaps Retry-After."""
    return lambda handler, content: handler.send(code, headers or {})


def reset(count: int) -> Fault:
    """The first `count` bytes, then the connection breaks; 0: before any answer."""

    def answer(handler: _Handler, content: bytes) -> None:
        handler.wfile.write(handler.start(content)[:count] if count else b"")
        handler.wfile.flush()
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        handler.close_connection = True

    return answer


def stall(count: int) -> Fault:
    """The first `count` bytes, then nothing, until the client hangs up."""

    def answer(handler: _Handler, content: bytes) -> None:
        handler.wfile.write(handler.start(content)[:count])
        handler.wfile.flush()
        handler.connection.recv(1)
        handler.close_connection = True

    return answer


def shorter(count: int) -> Fault:
    """A server that takes the file for shorter than it is, by `count` bytes."""
    return lambda handler, content: whole(handler, content[:-count])


def longer(count: int) -> Fault:
    return lambda handler, content: whole(handler, content + bytes(count))


def altered(handler: _Handler, content: bytes) -> None:
    """One bit is wrong."""
    whole(handler, content[:-1] + bytes([content[-1] ^ 1]))


def web_page(handler: _Handler, content: bytes) -> None:
    """HTML in place of the file, as a captive portal answers."""
    page = b"<!DOCTYPE html><html><body>Please log in</body></html>"
    handler.send(200, {"Content-Type": "text/html"}, page)


def range_ignored(handler: _Handler, content: bytes) -> None:
    """The whole file, whatever was asked for."""
    handler.send(200, {}, content)


def labelled_gzip(handler: _Handler, content: bytes) -> None:
    """The file as it is, called a gzip encoding of something else, as some mirrors call every .gz."""
    handler.send(200, {"Content-Encoding": "gzip"}, content)
