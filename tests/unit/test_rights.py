"""The rights of every principal: each operation by each kind of principal, at the REST API and at the gateways.

The expected answers are the declared tables.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.access.authenticator import Authenticator
from strandline.access.rights import ANYONE, REST_OPERATIONS, Principal, RequiredRight, may, require
from strandline.core.errors import Forbidden
from strandline.core.host_names import HEALTH_PATHS
from strandline.ingest.gateway.health_pages import HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.gateway.serving.http_request import Refusal, Request, Response
from strandline.ingest.http.gateway import HttpGateway
from strandline.ingest.registry import gateway_actions
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Role
from strandline.log.kafka_status import StoredDeadLetter
from strandline.processing.emission.requeue import RequeueRecord, RequeueResult
from strandline.services.jobs import dead_letters
from tests.support.control import BOTH, Api, api_description
from tests.support.tokens import tokens_of_each_kind
from tests.unit.test_http_answers import ToldStreams, ToldWriter

STREAM = "readings"
ALLOWED: dict[str, set[str]] = {
    RequiredRight.OPEN: {
        "nobody",
        "no token",
        "unknown",
        "wrong secret",
        "expired",
        "revoked",
        "writer",
        "writer-elsewhere",
        *Role,
    },
    RequiredRight.METRICS: {"metrics", "viewer", "operator", "admin"},
    RequiredRight.VIEWER: {"viewer", "operator", "admin"},
    RequiredRight.OPERATOR: {"operator", "admin"},
    RequiredRight.ADMIN: {"admin"},
    RequiredRight.WRITE: {"writer", "admin"},
}
"""The matrix once more, written out: who may do what needs this."""
WORTHLESS = {"nobody", "no token", "unknown", "wrong secret", "expired", "revoked"}
KINDS = sorted(ALLOWED[RequiredRight.OPEN])


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def authenticator(ledger: Ledger) -> Iterator[Authenticator]:
    made = Authenticator(ledger, look_s=1, kept_s=10)
    yield made
    made.close()


def described_operations() -> set[str]:
    paths = api_description()["paths"]
    return {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}


@pytest.mark.guarantee("G321")
def test_the_table_holds_every_operation_of_the_description_and_no_other() -> None:
    assert set(REST_OPERATIONS) == described_operations() | {"GET /openapi.json"}


def test_what_the_description_says_of_each_operation_is_what_the_table_says() -> None:
    for path, operations in api_description()["paths"].items():
        for method, operation in operations.items():
            assert operation["x-strandline-needs"] == REST_OPERATIONS[f"{method.upper()} {path}"]


@pytest.mark.guarantee(
    "G321",
    "If `STRANDLINE_AUTH` isn't `none`, each operation of the REST API and the HTTP gateway is refused before it "
    "starts: with 401 without a valid token, with 403 without the right. Only `/healthz` and `/readyz` are open.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.guarantee("G778")
def test_every_cell_of_the_rest_api_is_as_declared(ledger: Ledger, authenticator: Authenticator) -> None:
    """No cell leaks: without a valid token the answer is 401 except on the open routes, without the role it is 403."""
    api = Api(ledger, authenticator=authenticator)
    tokens = tokens_of_each_kind(ledger, STREAM)
    for name, need in REST_OPERATIONS.items():
        method, _, template = name.partition(" ")
        path = re.sub(r"{\w+}", STREAM if need is RequiredRight.WRITE else "7", template)
        for kind in KINDS:
            headers = {} if kind == "nobody" else {"Authorization": f"Bearer {tokens[kind]}"}
            answer = api.ask(method, path, headers=headers)
            cell = f"{kind}: {name}: {answer.status_code} {answer.text[:200]}"
            if kind in ALLOWED[need]:
                assert answer.status_code not in (401, 403), cell
                assert answer.status_code != 405 and "there is no route" not in answer.text, f"it met no route: {cell}"
            elif kind in WORTHLESS:
                assert answer.status_code == 401, cell
                assert answer.headers["www-authenticate"].startswith("Bearer"), cell
                assert answer.json()["code"] == "unauthenticated", cell
            else:
                assert answer.status_code == 403, cell
                assert answer.json()["code"] == "forbidden", cell
                assert need.value in answer.json()["detail"], cell


@pytest.mark.guarantee("G778")
def test_a_token_of_the_role_metrics_reads_metrics_and_nothing_else(
    ledger: Ledger, authenticator: Authenticator
) -> None:
    """The tables of rights aren't used here, so a change of a table alone fails."""
    api = Api(ledger, authenticator=authenticator)
    authorization = f"Bearer {tokens_of_each_kind(ledger, STREAM)['metrics']}"
    allowed = set()
    for name in described_operations():
        method, _, template = name.partition(" ")
        path = re.sub(r"{\w+}", "7", template)
        if api.ask(method, path, headers={"Authorization": authorization}).status_code not in (401, 403):
            allowed.add(name)
    sessions = {f"{method} /v1/session" for method in ("GET", "POST", "DELETE")}
    sessions |= {"POST /v1/session/renewal"}
    assert allowed == {"GET /healthz", "GET /readyz", "GET /metrics"} | sessions
    assert ask_gateway(authenticator, "GET", "/metrics", authorization)[0].status == 200
    answer, writer, _ = ask_gateway(authenticator, "POST", f"/v1/streams/{STREAM}/records", authorization)
    assert (answer.status, writer.appended) == (403, [])


def test_what_is_wrong_is_told_to_viewers_and_only_that_something_is_to_others(
    ledger: Ledger, authenticator: Authenticator
) -> None:
    """Kafka's address, the names of lookups and the errors of their databases are nothing for strangers."""
    api = Api(ledger, authenticator=authenticator)
    api.log.ranges = {}
    tokens = tokens_of_each_kind(ledger, STREAM)
    for kind in KINDS:
        headers = {} if kind == "nobody" else {"Authorization": f"Bearer {tokens[kind]}"}
        answer = api.ask("GET", "/readyz", headers=headers)
        log = "Kafka does not answer" if kind in ALLOWED[RequiredRight.VIEWER] else "failing"
        expected = {"ledger": "ok", "supervisor": "ok", "log": log}
        assert (answer.status_code, answer.json()["checks"]) == (200, expected), kind


@pytest.mark.guarantee(
    "G778",
    "A viewer reads only records of registered streams. A token of the role `metrics` reads only metrics.",
    promise="each-operation-requires-its-right",
)
def test_a_viewer_reads_records_of_registered_streams_only(ledger: Ledger, authenticator: Authenticator) -> None:
    """A Kafka cluster can hold topics of other applications."""
    api = Api(ledger, authenticator=authenticator)
    api.log.ranges["payroll"] = api.log.ranges["turbines"]
    tokens = tokens_of_each_kind(ledger, STREAM)
    stream = "stream: {}\nschema: {{turbine: string, extra: long}}\n"
    pipeline = (
        "---\npipeline: p\ninput: {{stream: {}}}\nevent_time: {{from: log}}\nsteps:\n"
        "  - window: {{name: w, tumbling: 1m, aggregate: {{n: count(*)}}}}\n    emit: [{{elasticsearch: p}}]\n"
    )

    def ask(role: str, method: str, path: str, text: str = "") -> int:
        headers = {"Authorization": f"Bearer {tokens[role]}", "Content-Type": "application/yaml"}
        return api.ask(method, path, headers=headers, content=text).status_code

    registered = stream.format("turbines") + pipeline.format("turbines")
    assert ask("operator", "POST", "/v1/documents", registered) == 200
    preview = "/v1/pipelines/preview"
    for role, of_other_topic in (("viewer", 404), ("operator", 200)):
        assert ask(role, "POST", preview, registered) == 200
        assert ask(role, "GET", "/v1/jobs/p/preview") == 200
        assert ask(role, "GET", "/v1/topics/turbines/proposal") == 200
        assert ask(role, "POST", f"{preview}?stream=payroll", registered) == of_other_topic
        assert ask(role, "POST", preview, stream.format("payroll") + pipeline.format("payroll")) == of_other_topic
        assert ask(role, "GET", "/v1/jobs/p/preview?stream=payroll") == of_other_topic
        assert ask(role, "GET", "/v1/topics/payroll/proposal") == of_other_topic
        assert ask(role, "POST", "/v1/topics/turbines/preview", registered) == 200
        assert ask(role, "POST", "/v1/topics/payroll/preview", registered) == of_other_topic


@pytest.mark.guarantee("G321")
@pytest.mark.parametrize(
    "path", ["/console", "/v1", "/v1/nothing", "/v1/jobs/", "/V1/jobs", "//v1/jobs", "/v1/jobs/x/start/", "/docs"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_what_no_route_takes_is_401_without_a_token(
    path: str, method: str, ledger: Ledger, authenticator: Authenticator
) -> None:
    assert Api(ledger, authenticator=authenticator).ask(method, path).status_code == 401


def ask_gateway(
    authenticator: Authenticator | None, method: str, url: str, authorization: str | None
) -> tuple[Response, ToldWriter, bool]:
    """Return the outcome of a request to the HTTP gateway, what was appended, and whether its body was read."""

    async def run() -> tuple[Response, ToldWriter, bool]:
        writer = ToldWriter()
        resources = GatewayResources(
            writer,  # type: ignore[arg-type]
            ToldStreams(),  # type: ignore[arg-type]
            IngestMetrics("http"),
            HostNames(),
            1_000,
            asyncio.Event(),
            authenticator=authenticator,
        )
        gateway = HttpGateway(resources, body_bytes_max=1_000)
        request = Request(b"http:192.0.2.1", gateway.budget)
        request.method, request.url = method.encode(), url.encode()
        request.headers[b"content-type"] = b"application/json"
        if url.endswith("/prometheus/write"):
            request.headers[b"content-type"] = b"application/x-protobuf"
            request.headers[b"content-encoding"] = b"snappy"
        if authorization is not None:
            request.headers[b"authorization"] = authorization.encode()
        is_read = True
        try:
            gateway.admit(request)
            request.add(b'{"n":1}' if method == "POST" else b"")
        except Refusal as refusal:
            request.refusal, is_read = refusal, False
        return await gateway.answer(request), writer, is_read

    return asyncio.run(run())


GATEWAY_ACTIONS = gateway_actions()
URL_OF_ACTION = {
    "GET /healthz": "/healthz",
    "GET /metrics": "/metrics",
    "POST /v1/streams/{stream}/records": f"/v1/streams/{STREAM}/records",
    "POST /api/v2/write": f"/api/v2/write?bucket={STREAM}",
    "POST /write": f"/write?db={STREAM}",
    "POST /v1/streams/{stream}/otlp/v1/metrics": f"/v1/streams/{STREAM}/otlp/v1/metrics",
    "POST /v1/streams/{stream}/prometheus/write": f"/v1/streams/{STREAM}/prometheus/write",
}


@pytest.mark.guarantee("G321")
def test_every_cell_of_the_http_gateway_is_as_declared(ledger: Ledger, authenticator: Authenticator) -> None:
    tokens = tokens_of_each_kind(ledger, STREAM)
    assert set(GATEWAY_ACTIONS) == {*URL_OF_ACTION, "GET /readyz", "MQTT PUBLISH", "UDP DATAGRAM"}
    for action, url in URL_OF_ACTION.items():
        need = GATEWAY_ACTIONS[action]
        for kind in KINDS:
            for _ in range(2):  # as one that is new to the gateway, and as one that it knows
                header = None if kind == "nobody" else f"Bearer {tokens[kind]}"
                found, writer, _ = ask_gateway(authenticator, action.split()[0], url, header)
                cell = f"{kind}: {action}: {found}"
                if kind in ALLOWED[need]:
                    assert found.status not in (401, 403), cell
                    continue
                assert found.status == (401 if kind in WORTHLESS else 403), cell
                assert not writer.appended, cell
                assert (b"www-authenticate" in dict(found.headers)) is (found.status == 401), cell


def test_a_request_without_a_token_or_of_one_that_is_known_to_lack_the_right_costs_no_body(
    ledger: Ledger, authenticator: Authenticator
) -> None:
    url, token = f"/v1/streams/{STREAM}/records", f"Bearer {tokens_of_each_kind(ledger, STREAM)['viewer']}"
    assert ask_gateway(authenticator, "POST", url, None)[2] is False
    ask_gateway(authenticator, "POST", url, token)
    found, _, is_read = ask_gateway(authenticator, "POST", url, token)
    assert (found.status, is_read) == (403, False)


def test_clients_of_influxdb_say_token_instead_of_bearer(ledger: Ledger, authenticator: Authenticator) -> None:
    token = tokens_of_each_kind(ledger, STREAM)["writer"]
    found, writer, _ = ask_gateway(authenticator, "POST", f"/v1/streams/{STREAM}/records", f"Token {token}")
    assert (found.status, len(writer.appended)) == (200, 1)


def test_without_a_doorkeeper_everything_is_as_it_was(ledger: Ledger) -> None:
    assert ask_gateway(None, "POST", f"/v1/streams/{STREAM}/records", "Bearer whatever")[0].status == 200
    api = Api(ledger)
    assert api.apply(BOTH).status_code == 200
    assert [event.principal for event in ledger.events()] == [None]
    assert api.ask("POST", "/v1/tokens", json={"name": "a", "role": "admin"}).status_code == 409, (
        "it would be worth nothing"
    )
    assert ledger.tokens() == []


@pytest.mark.parametrize("need", RequiredRight)
@pytest.mark.parametrize("role", [None, *Role])
def test_roles_hold_those_before_them_and_only_admins_write_everywhere(need: RequiredRight, role: Role | None) -> None:
    kind = role.value if role else "writer-elsewhere"
    assert may(Principal("x", role), need, STREAM) is (kind in ALLOWED[need])


def test_the_right_to_write_is_one_streams_or_all() -> None:
    for writes, stream, is_allowed in (
        ({"a"}, "a", True),
        ({"a"}, "b", False),
        ({"a"}, "", False),
        ({"*"}, "b", True),
        ({"a*"}, "ab", False),
    ):
        assert Principal("x", Role.OPERATOR, frozenset(writes)).may_write(stream) is is_allowed
    assert may(ANYONE, RequiredRight.WRITE, "b")


def test_a_refusal_says_what_is_missing() -> None:
    with pytest.raises(Forbidden, match="x may not stop jobs: that needs the role operator"):
        require(Principal("x", Role.VIEWER), RequiredRight.OPERATOR, "stop jobs")
    with pytest.raises(Forbidden, match="the right to write to stream a"):
        require(Principal("x", Role.OPERATOR), RequiredRight.WRITE, "append records", "a")


def test_the_open_doors_are_those_of_health_and_of_signing_in() -> None:
    for table, more in ((REST_OPERATIONS, {"/v1/session", "/v1/session/renewal"}), (GATEWAY_ACTIONS, set())):
        assert {name.split()[1] for name, need in table.items() if need is RequiredRight.OPEN} == HEALTH_PATHS | more


def test_a_token_is_made_shown_once_and_revoked_over_the_api(ledger: Ledger, authenticator: Authenticator) -> None:
    api = Api(ledger, authenticator=authenticator)
    admin = {"Authorization": f"Bearer {tokens_of_each_kind(ledger, STREAM)['admin']}"}
    asked = {"name": "dashboard", "role": "viewer", "writes": ["s"], "expires": "90d"}
    answer = api.ask("POST", "/v1/tokens", json=asked, headers=admin)
    made = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert made["created_by"] == "admin"
    assert abs(made["expires_ms"] - made["created_ms"] - 90 * 86_400_000) < 60_000, (
        "it is made a moment after it was asked for"
    )
    theirs = {"Authorization": f"Bearer {made['token']}"}
    assert api.ask("GET", "/v1/jobs", headers=theirs).status_code == 200
    shown = api.ask("GET", "/v1/tokens", headers=admin).text
    assert made["token"] not in shown and made["token"].split("_", 2)[2] not in shown and "digest" not in shown
    assert api.ask("POST", "/v1/tokens", json=asked, headers=admin).status_code == 409, "the name has a token"
    assert api.ask("POST", "/v1/tokens/dashboard/revoke", headers=admin).json()["revoked_by"] == "admin"
    asyncio.run(authenticator.look())
    assert api.ask("GET", "/v1/jobs", headers=theirs).status_code == 401
    assert api.ask("POST", "/v1/tokens/dashboard/revoke", headers=admin).status_code == 404
    assert [(one.kind, one.principal) for one in ledger.events()][-2:] == [
        ("token_made", "admin"),
        ("token_revoked", "admin"),
    ]
    for wrong in ({"name": "A B"}, {"name": "a"}, {"name": "a", "writes": ["S!"]}, {"name": "a", "role": "root"}):
        assert api.ask("POST", "/v1/tokens", json=wrong, headers=admin).status_code == 422, wrong
    for wrong in ("0s", "soon"):
        body = {"name": "a", "role": "viewer", "expires": wrong}
        assert api.ask("POST", "/v1/tokens", json=body, headers=admin).status_code == 422, wrong


@pytest.mark.guarantee(
    "G324",
    "The ledger's events and the audit log name the user of each change, and contain no token.",
    promise="each-operation-requires-its-right",
)
def test_who_ordered_what_is_in_the_events_and_in_the_audit_log(
    ledger: Ledger, authenticator: Authenticator, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api(ledger, authenticator=authenticator)
    tokens = tokens_of_each_kind(ledger, STREAM)
    operator, viewer = ({"Authorization": f"Bearer {tokens[kind]}"} for kind in ("operator", "viewer"))
    before = len(ledger.events())
    yaml = {"Content-Type": "application/yaml"}
    assert api.ask("POST", "/v1/documents", content=BOTH, headers=operator | yaml).status_code == 200
    for verb in ("stop", "start", "restart"):
        assert api.ask("POST", f"/v1/jobs/power/{verb}", headers=operator).status_code == 202
    assert api.ask("POST", "/v1/jobs/power/stop", headers=viewer).status_code == 403
    events = ledger.events()[before:]
    assert [(event.kind, event.principal) for event in events] == [
        (kind, "operator")
        for kind in ("stream_created", "job_created", "stop_ordered", "start_ordered", "restart_ordered")
    ]
    shown = api.ask("GET", "/v1/events?job=power", headers=viewer).json()["events"]
    assert {event["principal"] for event in shown} == {"operator"}
    text = caplog.text
    assert "POST /v1/jobs/{name}/stop" in text and "'name': 'power'" in text and "viewer" in text
    assert not [token for token in tokens.values() if token in text], "no token is logged"
    assert json.dumps(shown).count("sl_") == 0


@pytest.mark.guarantee("G324")
def test_what_destroys_or_puts_back_names_who_ordered_it(
    ledger: Ledger, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requeue_all(
        ledger: Ledger, index: object, bootstrap: str, stream: str, records: list[RequeueRecord], _: int
    ) -> RequeueResult:
        return RequeueResult({one.replay.identity for one in records})

    monkeypatch.setattr(dead_letters, "requeue", requeue_all)
    monkeypatch.setattr(dead_letters.DeadLetters, "_originals", lambda self, stream, letters: {})
    monkeypatch.setattr(dead_letters.LogIndex, "ends_with_open", lambda *_: {0: 0})
    api = Api(ledger, authenticator=authenticator)
    operator = {"Authorization": f"Bearer {tokens_of_each_kind(ledger, STREAM)['operator']}"}
    yaml = {"Content-Type": "application/yaml"}
    assert api.ask("POST", "/v1/documents", content=BOTH, headers=operator | yaml).status_code == 200
    headers = {"stream": "turbines", "partition": "0", "offset": "7", "reason": "decode", "step": "decode"}
    api.log.letters = [StoredDeadLetter(0, 1, headers, b"{")]
    before = len(ledger.events())
    orders = [
        ("POST", "/v1/jobs/power/dead-letters/repair?dead_letter=0&force=true&dry_run=true", b"{}"),
        ("POST", "/v1/jobs/power/dead-letters/repair?dead_letter=0&force=true", b"{}"),
        ("POST", "/v1/jobs/power/dead-letters/requeue?dry_run=true", b""),
        ("POST", "/v1/jobs/power/dead-letters/requeue", b""),
        (
            "POST",
            "/v1/jobs/power/dead-letters/repairs?force=true",
            b'{"edits": [{"edit": "replace", "field": "{", "to": "{}"}]}',
        ),
        ("POST", "/v1/jobs/power/reset?to=latest", b""),
        ("DELETE", "/v1/jobs/power?results=true", b""),
        ("DELETE", "/v1/streams/turbines?keep_topic=true", b""),
    ]
    for method, path, body in orders:
        kind = {"Content-Type": "application/json"} if "repairs" in path else {}
        answer = api.ask(method, path, content=body, headers=operator | kind)
        assert answer.status_code == 200, (path, answer.text)
    events = ledger.events()[before:]
    assert [(event.kind, event.principal) for event in events] == [
        (kind, "operator")
        for kind in (
            "dead_letter_repaired",
            "dead_letters_replayed",
            "dead_letters_replayed",
            "job_reset",
            "job_deleted",
            "delete_ordered",
            "stream_deleted",
        )
    ]
