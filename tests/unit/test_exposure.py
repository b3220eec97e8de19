"""No listener is open to strangers by mistake: off loopback each asks who comes, or an operator has said that it need not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.access.exposure import require_closed
from strandline.core.errors import InvalidSettings
from strandline.core.host_names import is_loopback
from strandline.core.settings import Settings
from strandline.ingest.gateway.process import open_resources
from strandline.ingest.http import gateway as http_gateway
from strandline.ingest.mqtt.server import serve as serve_mqtt
from strandline.ingest.mqtt.server_settings import MqttServerSettings
from strandline.ingest.tcp.gateway import serve as serve_tcp
from strandline.ingest.tcp.settings import TcpSettings
from strandline.ingest.udp.entry import GATEWAY as UDP
from strandline.ingest.udp.gateway import serve as serve_udp
from strandline.ingest.udp.settings import UdpSettings
from strandline.services import control
from tests.support.waiting import stretched

WIDE = "0.0.0.0"


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), (WIDE, False), ("::", False),
     ("192.0.2.1", False), ("localhost.example", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


SERVED: dict[str, tuple[type[Settings], Callable[[Any], Awaitable[None]], str]] = {
    "http": (Settings, http_gateway.serve, "http_host"),
    "tcp": (TcpSettings, serve_tcp, "tcp_host"),
    "udp": (UdpSettings, serve_udp, "udp_host"),
    "mqtt": (MqttServerSettings, serve_mqtt, "mqtt_listener_host"),
    "tcp's pages": (TcpSettings, serve_tcp, "http_host"),
    "mqtt's pages": (MqttServerSettings, serve_mqtt, "http_host"),
}


@pytest.mark.guarantee(
    "G323",
    "No service without authentication listens outside loopback unless an operator has allowed it.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("what", SERVED)
def test_every_gateway_refuses_in_one_sentence_to_be_open_to_strangers(what: str, tmp_path: Path) -> None:
    kind, serve, setting = SERVED[what]
    settings = kind(
        data_dir=tmp_path, ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}", http_port=0, **{setting: WIDE}
    )
    with pytest.raises(InvalidSettings) as refused:
        asyncio.run(asyncio.wait_for(serve(settings), stretched(30)))
    assert WIDE in str(refused.value) and "\n" not in str(refused.value)
    assert "STRANDLINE_" in str(refused.value)
    assert not (tmp_path / "ledger.sqlite").exists(), "it refuses before it opens anything"


@pytest.mark.guarantee("G323")
def test_the_rest_api_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSettings, match=r"the REST API would accept every client that reaches 0\.0\.0\.0: set STRANDLINE_AUTH"
    ):
        control.serve(control.ControlSettings(data_dir=tmp_path / "new", control_host=WIDE))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("settings", "asks", "is_refused"),
    [
        ({}, True, True),
        ({}, False, True),
        ({"auth": "tokens"}, True, False),
        ({"auth": "tokens"}, False, True),
        ({"allow_unauthenticated": True}, True, False),
        ({"allow_unauthenticated": True}, False, False),
    ],
)
def test_logins_close_a_door_that_asks_for_them_and_an_operators_word_opens_any(
    settings: dict[str, Any], asks: bool, is_refused: bool
) -> None:
    def look() -> None:
        require_closed(Settings(**settings), WIDE, "the door", "STRANDLINE_X_HOST", asks=asks)

    if is_refused:
        with pytest.raises(InvalidSettings, match="STRANDLINE_ALLOW_UNAUTHENTICATED=true if the network is protected"):
            look()
    else:
        look()


def test_with_tokens_the_pages_of_a_gateway_may_be_reached_by_others(tmp_path: Path) -> None:
    settings = UdpSettings(
        data_dir=tmp_path, ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}", http_host=WIDE, auth="tokens"
    )

    async def run() -> None:
        async with open_resources(settings, UDP) as resources:
            assert resources.authenticator is not None

    asyncio.run(run())
