"""What lies between the client and the hub: certificates, proxies, settings of the environment, credentials."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hub_fetching import SMALL, Fetching
from hub_server import COMMIT, HubServer
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from mpadam.data import hub as client
from mpadam.data.download import download_tokenizer
from mpadam.data.hub import UnreachableError
from mpadam.study.text import DataConfig, TokenizerConfig

pytest_plugins = ["hub_fetching"]
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Variables set here are read by a client of the test's own."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", *PROXIES, *map(str.lower, PROXIES)):
        monkeypatch.delenv(name, raising=False)
    close_session()
    yield monkeypatch
    close_session()


class _Refusing(BaseHTTPRequestHandler):
    """A proxy that opens no connection; `status` is why."""

    status = 407

    def do_CONNECT(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


def self_signed(folder: Path) -> Path:
    """A new key and its certificate, which nobody has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, to make a certificate")
    pem = folder / "self_signed.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    both = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    subprocess.run(["openssl", "req", *kind, *named, *both], check=True, capture_output=True)
    pem.write_text((folder / "key").read_text() + (folder / "certificate").read_text())
    return pem


@pytest.fixture
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Refusing,), {"status": request.param})) as server:
        if request.param is None:  # a server with a certificate of its own
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self_signed(tmp_path))
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def over_https(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"https://{address}")
    template = f"https://{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.mark.parametrize("listening", [None], indirect=True)
def test_a_certificate_that_is_not_trusted_is_not_waited_for(
    listening: ThreadingHTTPServer, fetching: Fetching, network: pytest.MonkeyPatch
) -> None:
    over_https(network, f"127.0.0.1:{listening.server_port}")
    with pytest.raises(ValueError, match=r"not trusted \(self.signed certificate\); set SSL_CERT_FILE"):
        fetching()
    assert fetching.waits == []


@pytest.mark.parametrize(
    ("listening", "remedy"),
    [(407, "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"), (403, "set HF_ENDPOINT")],
    indirect=["listening"],
)
def test_a_proxy_that_refuses_is_not_waited_for(
    listening: ThreadingHTTPServer, remedy: str, fetching: Fetching, network: pytest.MonkeyPatch
) -> None:
    over_https(network, "hub.invalid")
    network.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listening.server_port}")
    with pytest.raises(ValueError, match=f"https://hub.invalid answers 40[37]; .*{remedy}"):
        fetching()
    assert fetching.waits == []


@pytest.mark.parametrize("listening", [503], indirect=True)
def test_a_proxy_that_is_busy_is_waited_for(
    listening: ThreadingHTTPServer, fetching: Fetching, network: pytest.MonkeyPatch
) -> None:
    over_https(network, "hub.invalid")
    network.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listening.server_port}")
    with pytest.raises(UnreachableError, match="503"):
        fetching()
    assert fetching.waits == [1, 2]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("SSL_CERT_FILE=/nonexistent.pem", r"SSL_CERT_FILE=/nonexistent\.pem: .*No such file"),
        ("SSL_CERT_FILE=/dev/null", "SSL_CERT_FILE=/dev/null: .*no certificate"),
        ("ALL_PROXY=socks5h://127.0.0.1:1080", r"pip install socksio .*unset"),
        ("HTTP_PROXY=ftp://proxy.example", "a proxy in ALL_PROXY.* is no address of one"),
    ],
)
def test_what_the_environment_says_wrong_is_named(
    setting: str, message: str, hub: HubServer, network: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is no answer of the hub: a tokenizer that cannot be asked for is not one that the hub lacks."""
    network.setenv(*setting.split("="))
    network.setitem(sys.modules, "socksio", None)
    data = DataConfig(source="builtin", downloads=str(tmp_path))
    tokenizer = TokenizerConfig(source="hub", repo=SMALL.repo, revision=COMMIT)
    with pytest.raises(ValueError, match=message) as caught:
        download_tokenizer(data, tokenizer, log=print)
    assert "\n" not in str(caught.value)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("HTTP_PROXY=http://me:pass/word@127.0.0.1:3128", "is no address of one; .* / as %2F"),
        ("HTTP_PROXY=http://me:pass#word@127.0.0.1:3128", "is no address of one; .* # as %23"),
        ("HF_TOKEN=hf_passw\u00f6rd", r"\(HF_TOKEN\) holds a letter that no token has"),
        ("ENDPOINT=http://me:pass/word@mirror.example", "HF_ENDPOINT is no web address"),
    ],
)
def test_n34_no_message_holds_a_part_of_a_password(
    setting: str, message: str, hub: HubServer, fetching: Fetching, network: pytest.MonkeyPatch
) -> None:
    name, value = setting.split("=")
    network.setenv(name, value)
    if name == "ENDPOINT":
        network.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", value + "/{repo_id}/{revision}/{filename}")
    with pytest.raises(ValueError, match=message) as caught:
        fetching()
    assert not {"pass", "word", "passw"} & set(re.split(r"\W+", str(caught.value)))
    assert fetching.waits == []


def test_n34_a_redirection_that_goes_round_is_reported_without_secrets(
    hub: HubServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = hub.endpoint.replace("//", "//me:password@")
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    hub.faults_of_hub += [lambda handler, _: handler.send(302, {"Location": f"{handler.path}?signature=password"})] * 99
    with pytest.raises(UnreachableError, match="redirects while resolving") as caught:
        fetching(fruitless=2)
    assert "password" not in "".join([str(caught.value), *fetching.lines])


def test_offline_mode_is_named(hub: HubServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        fetching()
    assert hub.asked == []


def test_a_wrong_endpoint_is_named(hub: HubServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "mirror.example/{repo_id}/{revision}/{filename}")
    with pytest.raises(ValueError, match="HF_ENDPOINT is no web address"):
        fetching()
    assert fetching.waits == []


def test_the_endpoint_is_reported_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://me:word@mirror.example/hub?token=secret")
    assert client.endpoint() == "https://mirror.example/hub"


def test_credentials_stay_with_the_hub(hub: HubServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetching()
    sent = {asked.where: asked.headers.get("authorization") for asked in hub.asked}
    assert sent == {"hub": "Bearer hf_secret", "network": None}
    assert not any("hf_secret" in line for line in fetching.lines)
