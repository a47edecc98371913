"""Chromium, headless, driven over its pipe: JSON messages on two file descriptors, no port, no driver, no package.

with Browser() as browser:
    page = browser.open(path)
    page.evaluate("document.title")

What a page asks for, says on its console and fails at is kept in `page.requests`, `page.messages`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_START = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])"""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync"),
    "--remote-debugging-pipe",
)


class Browser:
    """One process of Chromium, with a profile of its own."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="mpadam-chromium-", ignore_cleanup_errors=True)
        (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
        # Chromium reads messages from descriptor 3 and writes to 4; both ends are kept out of their way first.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)]
        command = [str(CHROMIUM), *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, high), *command],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_read, from_write, *high):
            os.close(end)
        self._out, self._in = os.fdopen(to_write, "wb", 0), os.fdopen(from_read, "rb")
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.call("Browser.close")
        self._process.wait(timeout=30)
        self._out.close()
        self._in.close()
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command; returns its result. Events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event, from those kept on, that is wanted."""
        for event in self.events:
            if wanted(event):
                return event
        while not wanted(event := self._read()):
            pass
        return event

    def _read(self) -> dict[str, Any]:
        """The next message; pipes block until there is one, and end when the process does."""
        data = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "chromium ended"
            data += byte
        message = json.loads(data)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A new tab that shows the file, when it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        page.scheme(dark=dark)
        page.go(path.resolve().as_uri())
        return page


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def events(self, method: str) -> list[dict[str, Any]]:
        """Parameters of the events of that name so far."""
        own = (e for e in self._browser.events if e.get("sessionId") == self._session)
        return [event["params"] for event in own if event["method"] == method]

    def go(self, url: str) -> None:
        """Load an address, and wait for all of it."""
        loaded = len(self.events("Page.loadEventFired"))
        self.call("Page.navigate", url=url)
        self._browser.wait(lambda _: len(self.events("Page.loadEventFired")) > loaded)

    def scheme(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    @property
    def requests(self) -> list[str]:
        """Every address that the tab asked for."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    @property
    def complaints(self) -> list[str]:
        """Everything said on the console, thrown, logged as an error, or failed to load."""
        return [
            *(json.dumps(event["args"]) for event in self.events("Runtime.consoleAPICalled")),
            *(json.dumps(event["exceptionDetails"]) for event in self.events("Runtime.exceptionThrown")),
            *(json.dumps(event["entry"]) for event in self.events("Log.entryAdded")),
            *(event["errorText"] for event in self.events("Network.loadingFailed")),
        ]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])
