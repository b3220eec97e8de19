"""Channel `apprise`: the library sends only to allowed hosts, and no error contains the URL, which is a secret."""

from __future__ import annotations

import sys
from unittest import mock

import pytest

from strandline.core.errors import InvalidSettings
from strandline.core.extras import MissingExtra
from strandline.core.streams.entrances import SecretSpec
from strandline.notices.channels.apprise import AppriseSpec, note, send
from strandline.notices.channels.apprise_process import without_secrets
from strandline.notices.channels.tools import ChannelTools, NotConfirmed, Outgoing
from strandline.notices.rendering import render
from tests.support.notices import HttpReceiver, a_channel_tools

MESSAGE = Outgoing("night@1-1", 1_000, render("night", "test", []))
SPEC = AppriseSpec(url=SecretSpec(secret="CHAT"))


def tools(url: str, hosts: tuple[str, ...] = ("127.0.0.1",), timeout_s: float = 30.0) -> ChannelTools:
    return a_channel_tools(hosts, {"CHAT": url}, {"CHAT": ["127.0.0.1"]}, timeout_s)


@pytest.mark.guarantee(
    "G930",
    "A channel `apprise` sends only to hosts that STRANDLINE_NOTICE_HOSTS allows and to which the secret is bound. No error "
    "contains its URL.",
    promise="failures-are-reported-with-their-remedy",
)
def test_the_library_sends_only_to_allowed_hosts() -> None:
    with HttpReceiver() as http:
        url = f"json://user:canary@127.0.0.1:{http.port}/canary-path"
        send(SPEC, MESSAGE, tools(url))
        assert [one.json["title"] for one in http.received] == ["Test of notice night"]
        with pytest.raises(
            NotConfirmed, match="may not be requested; add the host, or its address, to STRANDLINE_NOTICE_HOSTS"
        ):
            send(SPEC, MESSAGE, tools(url, hosts=("10.0.0.1",)))
        with pytest.raises(
            NotConfirmed, match="must not be sent to localhost; add the host to STRANDLINE_NOTICE_SECRET_HOSTS"
        ):
            send(SPEC, MESSAGE, tools(url.replace("127.0.0.1", "localhost"), hosts=("localhost",)))
        http.behave = lambda: "500"
        with pytest.raises(NotConfirmed, match="apprise, secret CHAT: ") as refused:
            send(SPEC, MESSAGE, tools(url))
        assert "canary" not in str(refused.value) and "500" in str(refused.value)
        assert len(http.received) == 2


def test_a_wrong_url_a_late_service_and_a_secret_without_hosts_are_reported() -> None:
    with pytest.raises(NotConfirmed, match="not a URL that Apprise knows"):
        send(SPEC, MESSAGE, tools("nothing://canary"))
    with HttpReceiver(lambda: "hang") as http, pytest.raises(NotConfirmed, match="did not respond in time"):
        send(SPEC, MESSAGE, tools(f"json://127.0.0.1:{http.port}", timeout_s=2.0))
    with pytest.raises(InvalidSettings, match="not bound to hosts; add them to STRANDLINE_NOTICE_SECRET_HOSTS"):
        send(SPEC, MESSAGE, a_channel_tools(secrets={"CHAT": "json://127.0.0.1"}))


def test_reasons_with_a_part_of_the_url_are_left_out() -> None:
    url = "slack://TokenA/TokenB/#general"
    assert without_secrets(["error 404", "no such channel general", "error 404"], url) == "error 404"
    assert without_secrets(["tokena is wrong"], url) == "the service did not accept the message"


def test_without_the_library_the_error_names_the_extra() -> None:
    assert note(SPEC) is None
    hidden = [one for one in sys.modules if one.partition(".")[0] == "apprise"]
    with (
        mock.patch.dict(sys.modules),
        mock.patch(
            "strandline.notices.channels.apprise.require_module", side_effect=MissingExtra("strandline[apprise]")
        ),
    ):
        for name in hidden:
            del sys.modules[name]
        assert note(SPEC) == "strandline[apprise]"
        with pytest.raises(MissingExtra):
            send(SPEC, MESSAGE, tools("json://127.0.0.1"))
