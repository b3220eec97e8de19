"""The address of the client in the audit log: a client can't forge it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from strandline.access.authenticator import Authenticator
from strandline.core.errors import InvalidSettings
from strandline.services.control import ControlSettings, _server_config
from strandline.services.rest.guards.token_guard import TokenGuard
from tests.support.tokens import ToldBook
from tests.support.waiting import stretched, wait_until

FORGED = "203.0.113.9"
HEADERS = {"X-Forwarded-For": FORGED, "X-Forwarded-Proto": "https", "X-Real-IP": FORGED, "Forwarded": f"for={FORGED}"}


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{scope['scheme']} {scope['client'][0]}".encode()})


@contextmanager
def served(settings: ControlSettings, authenticator: Authenticator | None = None) -> Iterator[httpx.Client]:
    """The server of the REST API, with its audit log and an app that returns the address of the client."""
    config = _server_config(TokenGuard(app, authenticator), settings)
    config.lifespan = "off"
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, bool, "started")
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(stretched(30))


@pytest.mark.guarantee(
    "G789",
    "Each line of the audit log contains the address of the client, which the client can't forge. A header with "
    "another address counts only from a proxy in the settings.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("allowed", [None, "*", "127.0.0.1"])
def test_no_header_changes_the_address_in_the_audit_log(allowed, monkeypatch, caplog):
    if allowed is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", allowed)  # a setting of uvicorn
    with served(ControlSettings()) as client:
        answer = client.post("/v1/jobs/power/stop", headers=HEADERS)
    assert answer.text == "http 127.0.0.1"
    messages = [record.getMessage() for record in caplog.records]
    # A server of another test in this process can still log.
    (line,) = (one for one in messages if "action='audit'" in one and "/v1/jobs/" in one and "stop" in one)
    assert "peer='127.0.0.1'" in line
    assert FORGED not in line


def test_the_lines_of_refused_requests_have_the_address_of_the_connection(caplog):
    with served(ControlSettings(), Authenticator(ToldBook(), look_s=1, kept_s=10)) as client:
        assert client.post("/v1/jobs/power/stop", headers=HEADERS).status_code == 401
    assert "peer='127.0.0.1'" in caplog.text
    assert FORGED not in caplog.text


@pytest.mark.guarantee("G789")
@pytest.mark.parametrize(
    ("proxies", "header", "peer"),
    [
        (["127.0.0.1"], FORGED, FORGED),
        (["127.0.0.0/8"], f"198.51.100.1, {FORGED}", FORGED),
        (["127.0.0.1", "203.0.113.0/24"], f"198.51.100.1, {FORGED}", "198.51.100.1"),
        (["10.0.0.0/8"], FORGED, "127.0.0.1"),
    ],
)
def test_a_trusted_proxy_names_its_client_and_a_client_before_it_does_not(proxies, header, peer, caplog):
    with served(ControlSettings(control_trusted_proxies=proxies)) as client:
        assert client.post("/v1/jobs/power/stop", headers={"X-Forwarded-For": header}).status_code == 200
    assert f"peer='{peer}'" in caplog.text


@pytest.mark.parametrize("entry", ["*", "proxy.example", "10.0.0.1/8"])
def test_a_proxy_is_an_address_or_a_network(entry, monkeypatch):
    monkeypatch.setenv("STRANDLINE_CONTROL_TRUSTED_PROXIES", f'["{entry}"]')
    with pytest.raises(InvalidSettings, match="STRANDLINE_CONTROL_TRUSTED_PROXIES"):
        ControlSettings.read()
