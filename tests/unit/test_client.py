"""`strandline.Client` against the REST API without servers behind it, and its sending against a gateway that fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from strandline import Client, stream, tumbling
from strandline.core.errors import (
    Conflict,
    Forbidden,
    InvalidDocument,
    InvalidSettings,
    NotFound,
    PermanentError,
    StackError,
    TransientError,
    Unauthenticated,
)
from strandline.frontends.client import client as client_module
from strandline.frontends.client.sending import REQUEST_RECORDS_MAX, Sender, SendFailed
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import StoredDeadLetter
from strandline.processing.source.followed.query_rows import CONNECT_S_MAX, QUERY_S_MAX
from strandline.processing.source.followed.reading import FIRST_READ_S_MAX
from strandline.services.client import APPLY_S_MAX, ControlClient, ControlUnavailable, error_of
from strandline.services.embedded.addresses import StackAddresses
from tests.support.control import PIPELINE, STREAM, Api, ObedientSupervisor, serving

TURBINES = stream("turbines", schema={"turbine": "string", "ts": "timestamp", "power": "double"})
POWER = (
    TURBINES.event_time("ts", delay="10s")
    .window(tumbling("1m"), name="per_minute", by=["turbine"], peak="max(power)")
    .emit(elasticsearch="turbine-minute")
    .pipeline("power")
)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger, ObedientSupervisor(ledger))
    ledger.close()


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    with serving(api.app) as url, Client(url, timeout_s=10) as client:
        yield client


def test_documents_of_python_files_and_texts_are_applied(client: Client, tmp_path: Path) -> None:
    (created, job) = client.apply(POWER)
    assert (created.kind, created.name, created.outcome, created.version) == ("stream", "turbines", "created", 1)
    assert (job.kind, job.name, job.outcome) == ("pipeline", "power", "created")
    assert [one.outcome for one in client.apply(POWER, TURBINES)] == ["unchanged", "unchanged"]
    file = tmp_path / "more.sql"
    file.write_text("create job more with (event_time = 'ts', delay = '1s') as select * from turbines where power > 1")
    text = PIPELINE.replace("pipeline: power", "pipeline: third").replace("turbine-minute", "third")
    assert [one.name for one in client.apply(file, text)] == ["more", "third"]
    assert [job.name for job in client.jobs()] == ["more", "power", "third"]
    planned = client.plan(STREAM, text.replace("max(power)", "min(power)"))
    assert [(one.kind, one.name, one.changes, one.notes) for one in planned.documents] == [
        ("stream", "turbines", [], [])
    ]
    (plan,) = planned.jobs
    assert (plan.job, plan.outcome, plan.version) == ("third", "changed", 2) and plan.changes


@pytest.mark.guarantee("G433")
def test_what_the_service_refuses_has_the_place_where_it_was_said(client: Client, tmp_path: Path) -> None:
    wrong = TURBINES.event_time("ts", delay="10s").where("pwer > 1").emit(elasticsearch="x").pipeline("wrong")
    file, sql = tmp_path / "b.yaml", tmp_path / "c.sql"
    file.write_text(f"# why\n{STREAM.replace('turbines', 'others').replace('double', 'dubble')}")
    sql.write_text(
        "\ncreate job other with (event_time = 'ts', delay = '1s') as\n  select * from turbines where powr > 1"
    )
    with pytest.raises(InvalidDocument) as refused:
        client.apply(TURBINES, file, wrong, sql)
    places = {(one.source, one.line, one.column, one.path) for one in refused.value.problems}
    line = wrong.document.lines["steps", 0]
    assert places == {
        (__file__, line, None, "steps[0].where"),
        (str(file), 7, None, "schema.power"),
        (str(sql), 3, 32, "steps[0].where"),
    }


def test_a_job_is_followed_through_its_states(client: Client) -> None:
    client.apply(POWER)
    assert client.start("power", wait_s=10).state == "running"
    assert client.restart("power", wait_s=10).epoch == 2
    assert client.stop("power", wait_s=10).state == "stopped"
    assert client.start("power", wait_s=None).desired == "running"
    assert client.stop("power", drain=True, wait_s=10).state == "drained"
    assert client.explain("power").message
    with pytest.raises(Conflict):
        client.delete_stream("turbines")
    client.delete_job("power")
    client.delete_stream("turbines", keep_topic=True)
    assert client.streams() == []
    with pytest.raises(NotFound, match="power"):
        client.job("power")


def test_streams_are_listed_with_what_the_log_holds(client: Client) -> None:
    client.apply(TURBINES)
    (listed,) = client.streams()
    shown = client.stream("turbines")
    assert (listed.name, listed.document) == (shown.name, shown.document)
    assert shown.records == 300 and shown.emitted_by is None and shown.data["partitions"]


def test_dead_letters_are_read_page_by_page(client: Client, api: Api) -> None:
    client.apply(POWER)
    headers = {"stream": "turbines", "partition": "0", "step": "decode", "message": "m"}
    api.log.letters = [
        StoredDeadLetter(n, 1_000 * n, {**headers, "offset": str(n), "reason": ("decode", "late")[n % 2]}, b"x")
        for n in range(250)
    ]
    letters = list(client.dead_letters("power"))
    assert [one.number for one in letters] == list(range(250)) and letters[3].reason == "late"
    assert [one.number for one in client.dead_letters("power", after=245, reason="late")] == [247, 249]
    with pytest.raises(NotFound):
        next(client.dead_letters("none"))


@pytest.mark.guarantee("G434")
def test_what_only_reads_is_asked_again_and_a_restart_is_not(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.apply(POWER)
    asked: list[str] = []
    real = client._control._http.request

    def failing(method: str, path: str, **options: object) -> httpx.Response:
        asked.append(f"{method} {path}")
        if len(asked) < 3:
            raise httpx.ReadTimeout("slow")
        return real(method, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(client._control._http, "request", failing)
    monkeypatch.setattr(client_module, "_WAIT_S", 0.001)
    assert client.job("power").name == "power" and len(asked) == 3
    asked.clear()
    with pytest.raises(ControlUnavailable):
        client.restart("power")
    assert asked == ["POST /v1/jobs/power/restart"]


@pytest.mark.parametrize("timeout_s", [10.0, 900.0])
def test_applying_may_take_as_long_as_sources_are_read_and_other_requests_may_not(
    api: Api, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """Two lookups that follow streams take 80 s at most; a client that is away for longer asks later anyway."""
    allowed: dict[str, dict[str, float]] = {}
    with serving(api.app) as url, Client(url, timeout_s=timeout_s) as client:

        def noted(request: httpx.Request) -> httpx.Response:
            allowed[request.url.path] = request.extensions["timeout"]
            return send(request)

        send = client._control._http._transport.handle_request
        monkeypatch.setattr(client._control._http._transport, "handle_request", noted)
        client.apply(POWER)
        client.plan(POWER)
    applying = allowed["/v1/documents"]
    assert (applying["connect"], applying["read"]) == (timeout_s, max(timeout_s, APPLY_S_MAX))
    assert 10 * max(FIRST_READ_S_MAX, CONNECT_S_MAX + QUERY_S_MAX) <= APPLY_S_MAX
    assert allowed["/v1/documents/plan"]["read"] == timeout_s


def test_an_apply_without_an_answer_says_that_it_may_go_on() -> None:
    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out", request=request)

    with ControlClient("http://127.0.0.1:9") as control:
        control._http = httpx.Client(base_url="http://127.0.0.1:9", transport=httpx.MockTransport(late))
        with pytest.raises(
            ControlUnavailable, match=r"not responded.*may still be applying the documents; apply them again"
        ):
            control.apply(STREAM.encode(), "a.yaml")
        with pytest.raises(ControlUnavailable, match="does not respond"):
            control.job("power")


def test_a_wait_outlives_a_control_service_that_is_started_anew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer for longer, and before the first one, the error is raised; so is one that does not pass."""
    client.apply(POWER)
    looks: list[str] = []
    control = client._control
    real = control._http.request

    def away_after_the_first(method: str, path: str, **options: object) -> httpx.Response:
        looks.append(path)
        if 1 < len(looks) < 4:
            raise httpx.ConnectError("refused")
        if len(looks) == 4:
            return httpx.Response(503, json={"detail": "d"})
        return real(method, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(control._http, "request", away_after_the_first)
    assert control.wait_for_job("power", lambda _: len(looks) > 4, "seen", 60)["name"] == "power"
    looks[:] = [""]
    with pytest.raises(ControlUnavailable):
        control.wait_for_job("power", lambda _: True, "seen", 60)
    looks.clear()
    with pytest.raises(NotFound):
        control.wait_for_backfill("none", 1, lambda _: None)
    looks.clear()
    monkeypatch.setattr("strandline.services.client.NO_ANSWER_MAX_S", -1.0)
    with pytest.raises(ControlUnavailable):
        control.wait_for_job("power", lambda _: False, "seen", 60)
    assert len(looks) == 2


def test_an_answer_of_another_program_and_no_answer_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_WAIT_S", 0.001)
    with Client("http://127.0.0.1:9") as client, pytest.raises(ControlUnavailable, match="does not respond"):
        client.jobs()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthenticated),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (429, TransientError),
        (400, PermanentError),
    ],
)
def test_each_problem_has_its_class(status: int, kind: type[Exception]) -> None:
    error = error_of(status, {"detail": "why", "code": "some_code"})
    assert type(error) is kind and error.code == "some_code" and str(error).startswith("why")


# Sending

Answer = Callable[[httpx.Request], httpx.Response]


def sender(*answers: Answer) -> tuple[Sender, list[httpx.Request], list[float]]:
    """A sender whose gateway gives these answers in turn, and the last one again; the requests and waits."""
    requests: list[httpx.Request] = []
    waits: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answers[min(len(requests), len(answers)) - 1](request)

    http = httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(answer))
    return Sender(http, 60, waits.append), requests, waits


def all_accepted(request: httpx.Request) -> httpx.Response:
    is_lines = request.headers["Content-Type"] == "application/x-ndjson"
    return httpx.Response(200, json={"accepted": request.content.count(b"\n") + 1 if is_lines else 1})


def problem(status: int, code: str, **headers: str) -> Answer:
    return lambda _: httpx.Response(status, json={"code": code, "detail": f"because of {code}"}, headers=headers)


def raising(error: Exception) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


def test_objects_and_texts_are_lines_and_bytes_are_records() -> None:
    sending, requests, _ = sender(all_accepted)
    sent = sending.send("a b", [{"x": 1}, '{"x": 2}', b"\x00\n", {"x": "ä\n"}], None)
    assert (sent.accepted, sent.refused) == (4, [])
    assert [one.content for one in requests] == [b'{"x":1}\n{"x": 2}', b"\x00\n", '{"x":"ä\\n"}'.encode()]
    assert [one.headers["Content-Type"] for one in requests] == [
        "application/x-ndjson",
        "application/octet-stream",
        "application/x-ndjson",
    ]
    assert requests[0].url.path == "/v1/streams/a b/records" and "Idempotency-Key" not in requests[0].headers


def test_many_records_go_in_requests_of_bounded_size() -> None:
    sending, requests, _ = sender(all_accepted)
    count = REQUEST_RECORDS_MAX * 2 + 1
    assert sending.send("s", ({"n": n} for n in range(count)), "k").accepted == count
    assert [one.headers["Idempotency-Key"] for one in requests] == ["k-0", "k-1", "k-2"]
    assert all(len(one.content) < 2 << 20 for one in requests)
    sending, requests, _ = sender(all_accepted)
    sending.send("s", ["x" * 600_000] * 3, None)
    assert len(requests) == 3


@pytest.mark.guarantee("G434")
@pytest.mark.parametrize("code", ["log_away", "spool_full", "ledger_unavailable", "tokens_unavailable"])
def test_what_is_surely_not_in_the_log_is_sent_again(code: str) -> None:
    sending, requests, waits = sender(problem(503, code, **{"Retry-After": "3"}), problem(429, "busy"), all_accepted)
    assert sending.send("s", [{"n": 1}], None).accepted == 1
    assert len(requests) == 3 and waits[0] == 3.0


def test_a_connection_that_was_never_made_is_tried_again() -> None:
    sending, requests, _ = sender(raising(httpx.ConnectError("refused")), all_accepted)
    assert sending.send("s", [{"n": 1}], None).accepted == 1 and len(requests) == 2


@pytest.mark.guarantee(
    "G434",
    "The Python client repeats a request only if that is safe: records that can be in the log already are resent only "
    "with a key that identifies them. An error reports how many records are confirmed and how many are unknown.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize(
    "failure", [raising(httpx.ReadTimeout("slow")), problem(503, "log_unavailable"), problem(500, "internal")]
)
def test_what_may_be_in_the_log_is_sent_again_only_with_a_key(failure: Answer) -> None:
    sending, requests, _ = sender(all_accepted, failure)
    with pytest.raises(SendFailed) as failed:
        sending.send("s", ({"n": n} for n in range(REQUEST_RECORDS_MAX + 7)), None)
    assert (failed.value.accepted, failed.value.unknown) == (REQUEST_RECORDS_MAX, 7) and len(requests) == 2
    sending, requests, _ = sender(failure, all_accepted)
    assert sending.send("s", [{"n": 1}], "key").accepted == 1
    assert {one.headers["Idempotency-Key"] for one in requests} == {"key-0"}


def test_it_ends_at_the_deadline() -> None:
    http = httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(problem(503, "log_away")))
    with pytest.raises(SendFailed, match="of the next 1, none is in the log: because of log_away") as failed:
        Sender(http, 0, lambda _: None).send("s", [{"n": 1}], None)
    assert (failed.value.accepted, failed.value.unknown) == (0, 0)


def test_a_refusal_is_an_error_of_its_class_and_refused_records_keep_their_place() -> None:
    for status, kind in ((404, NotFound), (401, Unauthenticated), (413, PermanentError)):
        sending, requests, _ = sender(problem(status, "x"))
        with pytest.raises(kind, match="because of x"):
            sending.send("s", [{"n": 1}], None)
        assert len(requests) == 1
    refused = {"index": 2, "reason": "record_too_large", "detail": "d"}
    sending, _, _ = sender(
        all_accepted, lambda _: httpx.Response(200, content=json.dumps({"accepted": 4, "refused": [refused]}))
    )
    sent = sending.send("s", ({"n": n} for n in range(REQUEST_RECORDS_MAX + 5)), None)
    assert sent.accepted == REQUEST_RECORDS_MAX + 4 and sent.refused[0]["index"] == REQUEST_RECORDS_MAX + 2


def test_a_record_that_is_too_large_is_refused_also_where_it_is_alone_in_its_request() -> None:
    sending, requests, _ = sender(all_accepted, problem(413, "too_large"), all_accepted)
    sent = sending.send("s", [b"a", b"x" * 99, b"b"], None)
    assert sent.accepted == 2 and len(requests) == 3
    assert sent.refused == [{"index": 1, "reason": "too_large", "detail": "because of too_large"}]
    sending, _, _ = sender(problem(413, "too_large"), raising(httpx.ReadTimeout("slow")))
    with pytest.raises(SendFailed) as failed:
        sending.send("s", [b"x" * 99, b"b"], None)
    assert [one["index"] for one in failed.value.refused] == [0]


@pytest.mark.parametrize("code", ["too_large", "record_too_large"])
def test_an_error_after_the_first_request_says_what_is_in_the_log(code: str) -> None:
    """For several records in one request, a 413 doesn't say whether the body or each of them is too large."""
    sending, _, _ = sender(all_accepted, problem(413, code))
    with pytest.raises(PermanentError, match=f"because of {code}") as failed:
        sending.send("s", [b"a", "b", "c"], None)
    assert failed.value.__notes__ == ["the 1 records before are in the log"]


def test_a_client_without_a_gateway_says_so() -> None:
    with Client() as client, pytest.raises(InvalidSettings, match="ingest_url="):
        client.send("s", {"n": 1})


def test_the_client_of_an_embedded_stack_finds_its_addresses_and_token(tmp_path: Path) -> None:
    StackAddresses.of(tmp_path, 700).write()
    with Client.of_stack(tmp_path) as client:
        assert client._control._url == "http://127.0.0.1:8780"
        assert client._gateway is not None and str(client._gateway.base_url) == "http://127.0.0.1:8781"
    with pytest.raises(StackError, match="no stack was ever started"):
        Client.of_stack(tmp_path / "none")


def test_a_replay_goes_on_until_all_pieces_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {
        "matched": 3,
        "requeued": 2,
        "requeued_before": 1,
        "skipped": {"late": 1},
        "outcomes": {"accepted": 2},
        "next": "/n",
    }
    last = {
        "matched": 2,
        "requeued": 2,
        "requeued_before": 0,
        "skipped": {},
        "outcomes": {"accepted": 1, "schema": 1},
        "next": None,
    }
    asked: list[object] = []
    with Client() as client:
        monkeypatch.setattr(
            client._control, "requeue_dead_letters", lambda *job, **wanted: asked.append((*job, wanted)) or first
        )
        monkeypatch.setattr(client._control, "post", lambda path: asked.append(path) or last)
        replayed = client.requeue_dead_letters("power", reason="decode", dry_run=True)
    assert asked == [("power", {"reason": "decode", "dry_run": "true"}), "/n"]
    assert (replayed.matched, replayed.requeued, replayed.requeued_before) == (5, 4, 1)
    assert (replayed.skipped, replayed.outcomes) == ({"late": 1}, {"accepted": 3, "schema": 1})
