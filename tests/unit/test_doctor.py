"""The doctor's sentence about each possible problem."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import SecretStr
from typer.testing import CliRunner

from strandline.core.errors import (
    Conflict,
    IndexUnavailable,
    LogUnavailable,
    NotFound,
    RegistryUnavailable,
    StackError,
)
from strandline.core.settings import Settings
from strandline.ingest.append.attempts import Decision, Question, Questions
from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings
from strandline.ingest.mqtt.broker_check import check_broker
from strandline.ledger.ledger import Ledger
from strandline.ledger.schema import HEAD
from strandline.log.admin import KafkaAdmin
from strandline.results.elasticsearch_client import RequestRefused
from strandline.results.sinks.registry import installed_sinks
from strandline.results.sinks.sink import Sink, SinkFinding
from strandline.services.cli.commands import app
from strandline.services.doctor.elasticsearch import check_elasticsearch, free_bytes_needed
from strandline.services.doctor.finding import Finding, State, examine, ok
from strandline.services.doctor.kafka import check_kafka, clock_findings, topics_of_ledger
from strandline.services.doctor.ledger import UPGRADE, check_ledger
from strandline.services.doctor.machine import (
    check_machine,
    check_ports,
    of_open_files,
    of_python,
    of_room,
    of_spools,
)
from strandline.services.doctor.schema_registry import check_registry
from strandline.services.doctor.sinks import check_sink
from strandline.services.doctor.sql_sources import check_sql_sources
from tests.support.ledgers import run_sql
from tests.support.ports import free_port
from tests.support.waiting import stretched

GB = 2**30


def bad(found: Any) -> list[tuple[str, str]]:
    """State and sentence of all that is not ok; each has a remedy."""
    findings = list(found)
    assert all(bool(one.remedy) == (one.state is not State.OK) for one in findings)
    return [(str(one.state), one.message) for one in findings if one.state is not State.OK]


# The contract.


@pytest.mark.guarantee("G345")
def test_a_check_that_hangs_is_one_finding_and_holds_up_no_other() -> None:
    over = threading.Event()

    def hangs() -> Any:
        yield ok("slow", "it answers")
        over.wait(stretched(30))

    found = examine({"slow": hangs, "quick": lambda: [ok("quick", "fine")]}, 0.05, Settings())
    over.set()
    assert [(one.subject, str(one.state)) for one in found] == [("slow", "ok"), ("slow", "wrong"), ("quick", "ok")]
    assert "did not end within 0.05 s" in found[1].message


def test_checks_that_hang_have_one_deadline() -> None:
    over = threading.Event()
    began = time.monotonic()
    found = examine({name: lambda: over.wait(stretched(30)) for name in "abcd"}, 2.0, Settings())  # type: ignore[dict-item]
    took_s = time.monotonic() - began
    over.set()
    assert [one.subject for one in found] == list("abcd")
    assert took_s < 2.0 * 4, "one deadline, not one for each"


def test_what_a_check_raises_is_its_finding_and_a_fault_of_the_check_hides_no_other() -> None:
    def refuses() -> Any:
        raise StackError("it is broken; repair it")

    def is_wrong_itself() -> Any:
        raise ZeroDivisionError("x")

    found = examine({"a": refuses, "b": is_wrong_itself, "c": lambda: [ok("c", "fine")]}, 5, Settings())
    assert found[0] == Finding("a", State.WRONG, "it is broken", "repair it")
    assert found[1].state is State.WRONG and "ZeroDivisionError" in found[1].message
    assert found[2].state is State.OK


@pytest.mark.guarantee("G345")
def test_no_secret_is_in_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_KAFKA_PASSWORD", "hunter22")
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", "postgresql+psycopg://me:s3cretpw@db/ledger")
    monkeypatch.setenv("STRANDLINE_KAFKA_PROPERTIES", '{"some.token": "tok-en-1"}')

    def tells() -> Any:
        raise StackError("hunter22 and s3cretpw; try tok-en-1 at db/ledger")

    found = examine({"a": tells}, 5, Settings.read())
    assert found == [Finding("a", State.WRONG, "*** and ***", "try *** at db/ledger")]


# Kafka.


class Brokers(KafkaAdmin):
    """A Kafka in memory, for the doctor alone; what is named in `refuses` is refused."""

    def __init__(self, count: int = 1, *refuses: str, **config: str) -> None:
        self.count, self.refuses, self.config_of_broker = count, refuses, config
        self.topics: list[str] = []
        self.config_of_topics: dict[str, dict[str, str]] = {}
        self.replicas_of_topics = 1

    def _maybe(self, what: str) -> None:
        if what in self.refuses:
            raise Conflict(f"{what}: Kafka at here refused it (no right)")

    def brokers(self) -> list[int]:
        if "answer" in self.refuses:
            raise LogUnavailable(
                "the brokers could not be queried: no broker (Kafka at here); try again when Kafka answers"
            )
        return list(range(self.count))

    def broker_config(self, broker: int) -> dict[str, str]:
        self._maybe("describe")
        return self.config_of_broker

    def replicas(self) -> dict[str, int]:
        return dict.fromkeys(self.config_of_topics, self.replicas_of_topics)

    def config(self, topic: str) -> dict[str, str]:
        self._maybe("config")
        return self.config_of_topics[topic]

    def create(self, topic: str, *_: Any, only_asks: bool = False) -> bool:
        self._maybe("ask" if only_asks else "create")
        if not only_asks:
            self.topics.append(topic)
        return True

    def delete(self, topic: str) -> None:
        self._maybe("delete")
        self.topics.remove(topic)

    def do_leaders_answer(self, *_: Any) -> bool:
        return True

    def newest_log_times(self, *_: Any) -> dict[int, int]:
        self._maybe("newest")
        return {0: 1}


def written_now(bootstrap: str, topic: str) -> int:
    return time.time_ns() // 1_000_000


def refused_transaction(bootstrap: str, topic: str) -> int:
    raise LogUnavailable("a transaction failed: TransactionalIdAuthorizationFailed")


def test_a_kafka_in_which_all_is_well_keeps_nothing_of_the_doctors() -> None:
    brokers = Brokers()
    assert bad(check_kafka(Settings(), brokers, written_now)) == []
    assert brokers.topics == []


@pytest.mark.guarantee("G345")
@pytest.mark.parametrize(
    ("refused", "state", "said"),
    [
        ("answer", "wrong", "the brokers could not be queried: no broker"),
        ("describe", "warning", "can't read the broker's settings"),
        ("ask", "wrong", "can't create a topic: ask"),
        ("create", "wrong", "can't create a topic: create"),
        ("newest", "wrong", "can't write records and read them back: newest"),
        ("delete", "warning", "can't delete the doctor's topic"),
    ],
)
def test_each_right_that_kafka_refuses_is_one_finding(refused: str, state: str, said: str) -> None:
    brokers = Brokers(1, refused)
    ((found_state, sentence),) = bad(check_kafka(Settings(), brokers, written_now))
    assert found_state == state and said in sentence
    assert refused == "delete" or brokers.topics == []


def test_a_topic_on_which_no_transaction_is_allowed_is_deleted_all_the_same() -> None:
    brokers = Brokers()
    ((state, sentence),) = bad(check_kafka(Settings(), brokers, refused_transaction))
    assert state == "wrong" and "TransactionalIdAuthorizationFailed" in sentence
    assert brokers.topics == []


@pytest.mark.parametrize(
    ("brokers", "replication", "expected"),
    [(1, 1, []), (1, 3, ["wrong"]), (3, 1, ["warning"]), (3, 3, [])],
)
def test_replicas_that_the_brokers_cannot_hold(brokers: int, replication: int, expected: list[str]) -> None:
    settings = Settings(stream_replication=replication)
    assert [state for state, _ in bad(check_kafka(settings, Brokers(brokers), written_now))] == expected


@pytest.mark.guarantee("G770")
def test_spooled_records_in_doubt_are_a_warning_and_the_command_resolves_them(tmp_path: Path) -> None:
    directory = tmp_path / "ingest" / "udp-edge-8082"
    directory.mkdir(parents=True)
    for number in (2, 10):
        Questions(directory).ask(Question(number, "readings", 412, 1_700_000_000_000, 1_700_000_002_000))

    def strandline(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["spool", *arguments, "--data-dir", str(tmp_path)])

    (first, _) = list(of_spools(tmp_path))
    assert first.state is State.WARNING and "412 records of stream readings" in first.message
    assert first.remedy == "decide with strandline spool resolve udp-edge-8082/2 resend, or drop"
    listed = strandline("list")
    assert listed.exit_code == 0, listed.output
    assert listed.output.splitlines() == [
        f"udp-edge-8082/{number}: 412 records of stream readings, received from 2023-11-14 22:13:20Z to 2023-11-14 22:13:22Z"
        for number in (2, 10)
    ]
    unknown = strandline("resolve", "udp-edge-8082/7", "drop")
    assert isinstance(unknown.exception, NotFound) and "udp-edge-8082/7: no such records" in str(unknown.exception)
    assert strandline("resolve", "udp-edge-8082/10", "resend").exit_code == 0
    assert [Questions(directory).answer_of(number) for number in (2, 10)] == [None, Decision.RESEND]


SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "retention.bytes": "-1"}


def kafka_with_topics(brokers: int, replicas: int, *refuses: str, **settings: str) -> Brokers:
    """Topic `s` has `settings` in addition to safe ones. Topic `other` belongs to another application."""
    made = Brokers(brokers, *refuses)
    own = SAFE | {name.replace("_", "."): value for name, value in settings.items()}
    made.config_of_topics = {"s": own, "other": {"unclean.leader.election.enable": "true"}}
    made.replicas_of_topics = replicas
    return made


@pytest.mark.guarantee("G769")
@pytest.mark.parametrize(
    ("replicas", "settings", "said"),
    [
        (3, {}, []),
        (3, {"min_insync_replicas": "1"}, ["topic s has min.insync.replicas=1 with 3 replicas"]),
        (3, {"unclean_leader_election_enable": "true"}, ["topic s has unclean.leader.election.enable=true"]),
        (3, {"retention_bytes": "1000"}, ["topic s has retention.bytes=1000"]),
        (1, {"min_insync_replicas": "1"}, ["topic s has one replica (min.insync.replicas=1)"]),
    ],
)
def test_a_topic_of_a_stream_that_can_lose_confirmed_records_is_a_warning(
    replicas: int, settings: dict[str, str], said: list[str]
) -> None:
    kafka = kafka_with_topics(3, replicas, **settings)
    found = bad(check_kafka(Settings(stream_replication=3), kafka, written_now, lambda _: ["s", "absent"]))
    assert [state for state, _ in found] == ["warning"] * len(said)
    assert all(sentence.startswith(start) for (_, sentence), start in zip(found, said, strict=True))


def test_topics_of_a_single_broker_are_no_warning_and_their_disk_is_named() -> None:
    kafka = kafka_with_topics(1, 1, min_insync_replicas="1")
    found = list(check_kafka(Settings(), kafka, written_now, lambda _: ["s"]))
    assert bad(found) == []
    assert any("confirmed records of s are lost with its disk" in one.message for one in found)
    kafka = kafka_with_topics(1, 1, unclean_leader_election_enable="true")
    ((_, sentence),) = bad(check_kafka(Settings(), kafka, written_now, lambda _: ["s"]))
    assert "unclean.leader.election.enable=true" in sentence


def test_topics_whose_settings_may_not_be_read_are_one_warning() -> None:
    kafka = kafka_with_topics(3, 3, "config")
    ((state, sentence),) = bad(check_kafka(Settings(stream_replication=3), kafka, written_now, lambda _: ["s"]))
    assert state == "warning" and "can't read the settings of the topics" in sentence


def test_the_doctor_reads_the_topics_from_the_ledger_and_neither_makes_nor_upgrades_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    assert topics_of_ledger(url) == () and not (tmp_path / "ledger.sqlite").exists()
    ledger = Ledger.open(url)
    ledger.put_stream("s", {"stream": "s"})
    ledger.submit_job("j", "", {"pipeline": "j"})
    ledger.close()
    assert list(topics_of_ledger(url)) == ["s", "j.dead-letter"]
    run_sql(url, "UPDATE alembic_version SET version_num = '0001'")
    assert topics_of_ledger(url) == ()


def test_topics_that_anybody_makes_by_a_misspelt_name_are_a_warning() -> None:
    brokers = Brokers(1, **{"auto.create.topics.enable": "true"})
    ((state, sentence),) = bad(check_kafka(Settings(), brokers, written_now))
    assert state == "warning" and "every topic that a client names" in sentence


@pytest.mark.parametrize(
    ("theirs_ms", "said"),
    [(1_000, None), (1_500, None), (3_001, None), (9_600, "8.1 s ahead of"), (-4_000, "5.0 s behind")],
)
def test_a_clock_that_is_off_is_said(theirs_ms: int, said: str | None) -> None:
    found = bad(clock_findings("Kafka", theirs_ms, 1_000, 1_500))
    assert [said in sentence for _, sentence in found if said] == ([True] if said else [])
    assert len(found) == (said is not None)


# Elasticsearch.


class Store:
    """Answers as Elasticsearch does; `answers` go before."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[str] = []
        self.answers = {
            "GET /": {"version": {"number": "8.19.2"}},
            "POST /_security/user/_has_privileges": RequestRefused("no handler", 400, "illegal_argument_exception"),
            "GET /_cluster/settings": {"defaults": {"cluster.routing.allocation.disk.watermark.low": "85%"}},
            "GET /_cat/allocation": [
                {"node": "a", "disk.avail": str(50 * GB), "disk.total": str(100 * GB)},
                {"node": "UNASSIGNED", "disk.avail": None, "disk.total": None},
            ],
        } | answers

    def __call__(self, method: str, path: str, **_: Any) -> Any:
        self.asked.append(f"{method} {path}")
        for asked, answer in self.answers.items():
            verb, _, beginning = asked.partition(" ")
            if method == verb and (path == beginning or (beginning.endswith("-") and path.startswith(beginning))):
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return {}


GRANTED = {
    "cluster": {"monitor": True, "manage_index_templates": True},
    "index": {"*": {"create_doc": True, "read": True, "create_index": True, "manage": True, "index": True}},
}
NODES = {"nodes": {"x": {"version": "8.19.1"}}}
PRIVILEGES = "POST /_security/user/_has_privileges"


def test_without_security_the_rights_are_tried_and_nothing_is_left() -> None:
    store = Store()
    assert bad(check_elasticsearch(Settings(), store)) == []
    made = {line.partition(" ")[2] for line in store.asked if line.startswith("PUT") and "_alias" not in line}
    assert made == {line.partition(" ")[2] for line in store.asked if line.startswith("DELETE")} and len(made) == 2


def test_with_security_the_rights_are_asked_for_and_nothing_is_made() -> None:
    store = Store(**{PRIVILEGES: GRANTED})
    assert bad(check_elasticsearch(Settings(), store)) == []
    assert not any(line.startswith("PUT") for line in store.asked)


def test_a_server_without_its_first_page_tells_its_version_elsewhere() -> None:
    pages = {"GET /": RequestRefused("no such method", 405, "unknown")}
    found = list(check_elasticsearch(Settings(), Store(**pages, **{"GET /_nodes/_local/none": NODES})))
    assert bad(found) == [] and "version 8.19.1" in found[0].message


@pytest.mark.guarantee("G345")
@pytest.mark.parametrize(
    ("answers", "state", "said"),
    [
        ({"GET /": IndexUnavailable("GET / at here: no answer")}, "wrong", "no answer"),
        ({"GET /": RequestRefused("Elasticsearch answered 401", 401, "security_exception")}, "wrong", "answered 401"),
        ({"GET /": {"version": {"number": "7.17.0"}}}, "wrong", "version 7.17.0"),
        ({"GET /": {"version": {"number": "9.1.0"}}}, "wrong", "version 9.1.0"),
        ({PRIVILEGES: GRANTED | {"cluster": {"monitor": True}}}, "wrong", "on the cluster: manage_index_templates"),
        ({PRIVILEGES: GRANTED | {"index": {}}}, "warning", "lacks these rights on some indices: create_doc, read"),
        (
            {PRIVILEGES: GRANTED | {"index": {"*": {**GRANTED["index"]["*"], "index": False}}}},
            "warning",
            "lacks this right on some indices: index; jobs need it if late records revise their results",
        ),
        (
            {"PUT /_index_template/strandline-doctor-": RequestRefused("refused", 403, "x")},
            "wrong",
            "could not make a template",
        ),
        (
            {"POST /strandline-doctor-": {"errors": True, "items": [{"create": {"error": "blocked"}}]}},
            "wrong",
            "refused to write documents: blocked",
        ),
        ({"GET /_cat/allocation": RequestRefused("refused", 403, "x")}, "warning", "can't examine its disks"),
        (
            {"GET /_cat/allocation": [{"node": "a", "disk.avail": str(9 * GB), "disk.total": str(100 * GB)}]},
            "warning",
            "node a has 9,216 MB free, below the watermark low",
        ),
    ],
)
def test_each_thing_that_is_wrong_with_elasticsearch(answers: dict[str, Any], state: str, said: str) -> None:
    ((found_state, sentence),) = bad(check_elasticsearch(Settings(), Store(**answers)))
    assert found_state == state and said in sentence


@pytest.mark.parametrize(
    ("written", "headroom", "total_gb", "needed_gb"),
    [
        ("85%", None, 100, 15),
        ("85%", "200gb", 10_000, 200),
        ("85%", "-1", 10_000, 1_500),
        ("0.9", None, 100, 10),
        ("2gb", "200gb", 100, 2),
        ("what?", None, 100, 0),
    ],
)
def test_watermarks_in_each_form(written: str, headroom: str | None, total_gb: int, needed_gb: int) -> None:
    name = "cluster.routing.allocation.disk.watermark.high"
    settings = {name: written} | ({f"{name}.max_headroom": headroom} if headroom else {})
    assert round(free_bytes_needed(settings, "high", total_gb * GB) / GB) == needed_gb


# The ledger.


def test_a_ledger_at_this_release_is_fine_and_stays_as_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger.migrate(url)
    ledger = Ledger.open(url)
    ledger.put_stream("kept", {"stream": "kept"})
    ledger.close()
    assert bad(check_ledger(url)) == []
    ledger = Ledger.open(url)
    assert ledger.stream("kept").document == {"stream": "kept"}
    ledger.close()


def test_a_ledger_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    (found,) = check_ledger(url)
    assert (found.state, found.message, found.remedy) == (
        State.WRONG,
        f"there is no {tmp_path}/ledger.sqlite yet",
        UPGRADE,
    )
    assert bad(check_ledger(url, is_upgraded_next=True)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("ahead", "state"), [(-1, "wrong"), (1, "warning"), (2, "wrong")])
def test_a_ledger_of_another_release_is_said(ahead: int, state: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger.migrate(url)
    other = f"r{int(HEAD[1:]) + ahead:04}"
    run_sql(url, "UPDATE alembic_version SET version_num = :other", other=other)
    ((found_state, sentence),) = bad(check_ledger(url))
    assert found_state == state and f"revision {other}" in sentence
    assert len(bad(check_ledger(url, is_upgraded_next=True))) == (ahead > 0)


def test_a_ledger_of_a_development_version_is_said_with_what_to_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger.migrate(url)
    run_sql(url, "UPDATE alembic_version SET version_num = '0025'")
    wrong = [finding for finding in check_ledger(url, is_upgraded_next=True) if finding.state is State.WRONG]
    assert [finding.message.partition(",")[0] for finding in wrong] == ["its schema has revision 0025"]
    assert "Use a new database (STRANDLINE_LEDGER_URL" in wrong[0].remedy


def test_a_table_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger.migrate(url)
    run_sql(url, "DROP TABLE tokens")
    ((state, sentence),) = bad(check_ledger(url))
    assert state == "wrong" and "write to the ledger" in sentence


def test_a_database_that_does_not_answer_is_one_finding() -> None:
    url = f"postgresql+psycopg://me:planted@127.0.0.1:{free_port()}/ledger"
    ((state, sentence),) = bad(check_ledger(url))
    assert state == "wrong" and "planted" not in sentence


# The rest.


class NoRegistry:
    def schema(self, kind: str, number: int) -> None:
        raise RegistryUnavailable("The schema registry at here does not answer")


class EmptyRegistry:
    def schema(self, kind: str, number: int) -> None:
        return None


def test_a_schema_registry_is_looked_at_where_one_is_set() -> None:
    assert list(check_registry(Settings(schema_registry_url=None))) == []
    assert bad(check_registry(Settings(), EmptyRegistry())) == []
    ((state, sentence),) = bad(check_registry(Settings(), NoRegistry()))
    assert state == "wrong" and "does not answer" in sentence


class Broker:
    """Accepts one connection, and answers with these bytes."""

    def __init__(self, answer: bytes) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, args=(answer,), daemon=True)
        self.thread.start()

    def _serve(self, answer: bytes) -> None:
        connection, _ = self.socket.accept()
        with connection:
            connection.recv(1_000)
            connection.sendall(answer)
            if answer:
                connection.recv(1_000)

    def close(self) -> None:
        self.thread.join(stretched(5))
        self.socket.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"\x20\x02\x00\x00", None),
        (b"\x20\x02\x00\x05", "refused the connection: Not authorized"),
        (b"", "did not answer in MQTT 3.1.1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "did not answer in MQTT 3.1.1"),
    ],
    ids=["accepted", "refused", "hangs up", "not mqtt"],
)
def test_what_an_mqtt_broker_answers(answer: bytes, said: str | None) -> None:
    broker = Broker(answer)
    settings = MqttBridgeSettings(mqtt_url=broker.url, mqtt_version="3.1.1")
    (finding,) = check_broker(settings, timeout_s=0.5)
    broker.close()
    assert bool(finding.remedy) == (said is not None)
    assert said is None or said in finding.message


def test_an_mqtt_broker_that_is_not_there_or_misnamed_is_one_finding() -> None:
    ((sentence, _),) = check_broker(MqttBridgeSettings(mqtt_url=f"mqtt://127.0.0.1:{free_port()}"))
    assert "no connection to mqtt://127.0.0.1" in sentence
    ((sentence, _),) = check_broker(MqttBridgeSettings(mqtt_url="http://me:planted@there"))
    assert "STRANDLINE_MQTT_URL" in sentence and "planted" not in sentence


def test_a_sql_sink_is_tried_with_a_table_of_the_doctors_own(tmp_path: Path) -> None:
    sql = installed_sinks()["sql"]
    assert not sql.has_server(Settings())
    assert list(check_sink("sql", sql, Settings())) == []
    url = f"sqlite:///{tmp_path}/results.sqlite"
    assert bad(check_sink("sql", sql, Settings(sql_sink_url=url))) == []
    assert run_sql(url, "SELECT name FROM sqlite_master") == []
    ((state, sentence),) = bad(
        check_sink("sql", sql, Settings(sql_sink_url=f"sqlite:///{tmp_path}/none/results.sqlite"))
    )
    assert state == "wrong" and "can't be reached" in sentence


class _StoreOfPackage(Sink):
    def __init__(self, target: str = "") -> None:
        self._target = target

    def target(self, settings: Settings) -> str:
        return self._target

    def examine(self, settings: Settings) -> Iterator[SinkFinding]:
        yield SinkFinding("the store responds")


@pytest.mark.parametrize(
    ("target", "subject"),
    [("", "sink acme_store"), ("https://me:planted@store:9200/a", "sink acme_store (https://store:9200/a)")],
)
def test_a_finding_about_the_sink_of_a_package_names_the_sink_and_its_target(target: str, subject: str) -> None:
    (finding,) = check_sink("acme_store", _StoreOfPackage(target), Settings())
    assert (finding.subject, finding.message) == (subject, "the store responds")


def test_the_databases_of_lookups_are_asked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/crm.sqlite"
    run_sql(url, "CREATE TABLE sites (id integer)")
    sources = {"crm": SecretStr(url), "erp": SecretStr(f"sqlite:///{tmp_path}/none.sqlite")}
    ((state, sentence),) = bad(check_sql_sources(Settings(sql_sources=sources)))
    assert state == "wrong" and "database erp: there is no file" in sentence


def test_the_machine(tmp_path: Path) -> None:
    def no_java() -> Path:
        raise StackError("there is no Java on the PATH; install one")

    found = list(check_machine(Settings(data_dir=tmp_path, scratch_dir=tmp_path), no_java))
    assert [one.message for one in found if one.state is State.WRONG] == ["there is no Java on the PATH"]
    assert bad(of_python((3, 10))) == [("wrong", "Python is 3.10, too old")]
    assert [state for state, _ in bad(of_open_files(1_024))] == ["warning"] and bad(of_open_files(65_536)) == []


@pytest.mark.parametrize(("free", "expected"), [(100 * GB, []), (GB, ["warning"]), (GB // 4, ["wrong"])])
def test_room_on_a_disk_whose_directory_is_not_made_yet(free: int, expected: list[str], tmp_path: Path) -> None:
    assert [state for state, _ in bad(of_room("data", tmp_path / "a" / "b", lambda _: free))] == expected


def test_a_directory_that_is_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ((state, sentence),) = bad(of_room("scratch", tmp_path / "file", lambda _: GB))
    assert state == "wrong" and "the scratch directory" in sentence


def test_a_port_that_another_program_has_is_named_with_its_purpose() -> None:
    found = bad(check_ports({"Kafka": 9092, "the control service": 8080}, lambda port: port != 9092, "stop it"))
    assert found == [("wrong", "port 9092 on 127.0.0.1 for Kafka is used by another program")]
    assert bad(check_ports({"Kafka": 9092}, lambda _: True, "stop it")) == []


def test_the_admin_says_in_its_own_words_that_no_broker_answers() -> None:
    class Nobody:
        def list_topics(self, timeout: float) -> Any:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        def poll(self, _: float) -> None:
            pass

    admin = KafkaAdmin("nowhere:1", timeout_s=0.1, make_client=lambda _: Nobody())  # type: ignore[arg-type,return-value]
    ((state, sentence),) = bad(check_kafka(Settings(), admin))
    assert state == "wrong" and "nowhere:1" in sentence
