"""Notices from an event to a receiver, with a real ledger and real sockets on loopback."""

from __future__ import annotations

import base64
import hmac
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.documents import read_documents
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState
from strandline.notices.channels.tools import ChannelTools
from strandline.notices.document import NoticeSpec
from strandline.notices.service import NoticeService, NoticeTimes
from strandline.notices.view import Surroundings
from strandline.services.certificates import make_dev_certificates
from tests.support.notices import HttpReceiver, SmtpReceiver, a_channel_tools
from tests.support.waiting import wait_until

QUICK = "group: {wait: 0s, every: 0s}\ncooldown: 0s"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    opened.put_stream("turbines", {"stream": "turbines", "retention": "7d"})
    yield opened
    opened.close()


def apply(ledger: Ledger, text: str, name: str = "night") -> None:
    (document,) = read_documents(f"notice: {name}\n{text}", "notice.yaml", ("notice",))
    ledger.put_notice(name, NoticeSpec.parse(document).as_document())


def add_job(ledger: Ledger, name: str) -> None:
    ledger.submit_job(name, "text", {"pipeline": name, "input": {"stream": "turbines"}})
    ledger.move_job(name, JobState.STARTING)


def fail(ledger: Ledger, name: str, message: str = "the index is read-only") -> None:
    ledger.move_job(name, JobState.FAILED, message)


def a_service(ledger: Ledger, tools: ChannelTools | None = None, name: str = "control-1") -> NoticeService:
    times = NoticeTimes(look_s=0.0, send_s=0.01, lease_ms=20_000)
    return NoticeService(ledger, name, tools or a_channel_tools(), Surroundings(), times)


def steps_until(service: NoticeService, is_done: Callable[[], bool], what: str) -> None:
    def step() -> bool:
        service.step()
        return is_done()

    wait_until(step, bool, what)


@pytest.mark.guarantee("G825")
def test_a_failed_job_becomes_a_signed_webhook_and_a_mail(ledger: Ledger, tmp_path: Path) -> None:
    certificates = make_dev_certificates(tmp_path, ["localhost"])
    tls = ssl.create_default_context(cafile=certificates.ca)
    add_job(ledger, "power")
    with (
        HttpReceiver() as http,
        SmtpReceiver(certificates.server, certificates.server_key, ("ops", "canary-2")) as smtp,
    ):
        apply(
            ledger,
            f"""
when: [job_failed]
{QUICK}
about: "Runbook: https://wiki.example/strandline"
to:
  - webhook: {{url: "{http.url}", sign: {{secret: KEY}}}}
  - mail:
      to: [night@example.org]
      from: strandline@example.org
      server: localhost
      port: {smtp.port}
      user: ops
      password: {{secret: MAIL}}
""",
        )
        tools = a_channel_tools(
            ("127.0.0.1", "localhost"), {"KEY": "canary-1", "MAIL": "canary-2"}, {"MAIL": ["localhost"]}, tls=tls
        )
        service = a_service(ledger, tools)
        fail(ledger, "power")
        steps_until(service, lambda: bool(http.received and smtp.received), "both received")
        service.close()
    (request,), (mail,) = http.received, smtp.received
    assert request.json["title"] == "Job power failed"
    for part in (
        "the index is read-only",
        "written no results",
        "turbines",
        "strandline job start power",
        "wiki.example",
    ):
        assert part in request.json["text"] and part in mail.get_content()
    at = request.headers["webhook-timestamp"]
    signed = f"{request.headers['webhook-id']}.{at}.".encode() + request.body
    expected = base64.b64encode(hmac.digest(b"canary-1", signed, "sha256")).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert request.headers["webhook-id"] == request.json["id"]
    assert mail["Subject"] == "[strandline] Job power failed" and smtp.was_encrypted == [True]
    assert b"canary" not in request.body and "canary" not in mail.as_string()
    assert all(message.sent_ms for message in ledger.notice_messages("night"))
    assert "canary" not in str(ledger.events())


def test_eighty_failed_jobs_are_one_message_and_so_is_their_end(ledger: Ledger) -> None:
    with HttpReceiver() as http:
        apply(ledger, f"when: [job_failed]\n{QUICK}\nto: [{{webhook: {{url: '{http.url}'}}}}]")
        for number in range(80):
            add_job(ledger, f"job-{number}")
            fail(ledger, f"job-{number}")
        service = a_service(ledger)
        steps_until(service, lambda: len(http.received) == 1, "the message")
        for number in range(80):
            ledger.move_job(f"job-{number}", JobState.STARTING)
        steps_until(service, lambda: len(http.received) == 2, "the end")
        for _ in range(5):
            service.step()
        service.close()
    assert [one.json["title"] for one in http.received] == [
        "80 problems, the first: Job job-0 failed",
        "Resolved: 80 problems, the first: Job job-0 failed",
    ]
    assert "job-59" in http.received[0].json["text"] and "20 more" in http.received[0].json["text"]


@pytest.mark.guarantee("G825")
@pytest.mark.parametrize("answer", ["500", "302", "404", "cut", "hang"])
def test_a_message_that_is_not_confirmed_is_sent_again(ledger: Ledger, answer: str) -> None:
    add_job(ledger, "power")
    with HttpReceiver() as http:
        http.behave = lambda: answer if len(http.received) < 1 else "ok"
        apply(ledger, f"when: [job_failed]\n{QUICK}\nto: [{{webhook: {{url: '{http.url}'}}}}]")
        service = a_service(ledger, a_channel_tools(timeout_s=0.5))
        fail(ledger, "power")
        steps_until(service, lambda: len(http.received) == 2, "the second attempt")
        steps_until(service, lambda: bool(ledger.notice_messages("night")[0].sent_ms), "its record")
        service.close()
    first, second = http.received
    assert first.body == second.body and first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [event.kind for event in ledger.events() if event.kind.startswith("notice_")] == [
        "notice_problem",
        "notice_not_confirmed",
    ]


@pytest.mark.guarantee(
    "G825",
    "Notices send nothing to a host that isn't allowed, follow no redirect, and show no secret in messages, events, "
    "or answers.",
    promise="failures-are-reported-with-their-remedy",
)
def test_a_host_that_is_not_allowed_gets_nothing(ledger: Ledger) -> None:
    add_job(ledger, "power")
    with HttpReceiver() as http:
        apply(ledger, f"when: [job_failed]\n{QUICK}\nto: [{{webhook: {{url: '{http.url}'}}}}]")
        service = a_service(ledger, a_channel_tools(("example.org",)))
        fail(ledger, "power")
        steps_until(service, lambda: bool(ledger.notice_messages("night")[0].error), "the refusal")
        service.close()
    assert http.received == []
    assert "STRANDLINE_NOTICE_HOSTS" in ledger.notice_messages("night")[0].error


@pytest.mark.guarantee("G823")
def test_what_a_killed_service_was_sending_is_sent_again_by_the_next_one(ledger: Ledger) -> None:
    add_job(ledger, "power")
    with HttpReceiver() as http:
        apply(ledger, f"when: [job_failed]\n{QUICK}\nto: [{{webhook: {{url: '{http.url}'}}}}]")
        killed = a_service(ledger)
        fail(ledger, "power")
        epoch, now_ms = ledger.lead_notices("control-1/before", 20_000) or (0, 0)
        killed.look(epoch, now_ms)
        (message,) = ledger.pending_messages()
        assert ledger.begin_attempt(epoch, message) is not None
        other = a_service(ledger, name="control-2")
        other.step()
        assert http.received == [], "the lease of the killed service holds"
        same = a_service(ledger)
        ledger.release_notices("control-1")
        steps_until(same, lambda: len(http.received) == 1, "the message")
        steps_until(same, lambda: bool(ledger.notice_messages("night")[0].sent_ms), "its record")
        same.close()
    assert ledger.notice_messages("night")[0].attempts == 2


def test_a_muted_notice_sends_at_the_end_of_muting(ledger: Ledger) -> None:
    add_job(ledger, "power")
    with HttpReceiver() as http:
        apply(ledger, f"when: [job_failed]\n{QUICK}\nto: [{{webhook: {{url: '{http.url}'}}}}]")
        ledger.mute_notice("night", 2**52, "ops")
        service = a_service(ledger)
        fail(ledger, "power")
        for _ in range(5):
            service.step()
        assert http.received == [] and len(ledger.notice_problems("night")) == 1
        ledger.mute_notice("night", None, None)
        steps_until(service, lambda: len(http.received) == 1, "the message")
        service.close()


def test_each_placeholder_and_secret_of_a_template_is_filled(ledger: Ledger) -> None:
    add_job(ledger, "power")
    with HttpReceiver() as http:
        apply(
            ledger,
            f"""
when: [job_failed]
{QUICK}
to:
  - webhook:
      url: {{secret: URL}}
      headers: {{Authorization: {{secret: KEY}}}}
      template:
        routing_key: {{secret: KEY}}
        event_action: "{{action}}"
        dedup_key: "{{key}}"
        payload: {{summary: "{{title}}", source: "{{job}}", parts: ["{{condition}}", 1, true]}}
""",
        )
        secrets = {"URL": http.url, "KEY": "canary"}
        hosts = {"URL": ["127.0.0.1"], "KEY": ["127.0.0.1"]}
        service = a_service(ledger, a_channel_tools(secrets=secrets, secret_hosts=hosts))
        fail(ledger, "power")
        steps_until(service, lambda: len(http.received) == 1, "the message")
        service.close()
    (request,) = http.received
    life = ledger.notice("night").created_ms
    expected: dict[str, Any] = {
        "routing_key": "canary",
        "event_action": "trigger",
        "dedup_key": f"night@{life}/1",
        "payload": {"summary": "Job power failed", "source": "power", "parts": ["job_failed", 1, True]},
    }
    assert request.json == expected and request.headers["authorization"] == "canary"
