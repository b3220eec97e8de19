"""Documents that are refused before any is applied, here two streams of one gateway; and a job's event time."""

from __future__ import annotations

import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule
from strandline.log.admin import TopicDescription
from strandline.processing.pipelines.stored import load_pipeline
from strandline.services.jobs.apply_documents import DocumentApplier, check_documents
from tests.support.ledgers import a_checkpoint, a_slice

STREAM = "stream: {name}\nschema: {{n: long}}\n{entrance}\n"
ENTRANCES = ["udp: {port: 8082}", "tcp: {port: 8083}", 'mqtt: {topics: ["farm/+"]}']


def registered(entrance: str, name: str = "old") -> dict[str, dict]:
    batch = check_documents(STREAM.format(name=name, entrance=entrance), "a.yaml", {})
    return {name: batch.streams[0].as_document()}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_an_entrance_of_another_stream_is_refused_with_its_line(entrance):
    for text, known in (
        (STREAM.format(name="new", entrance=entrance), registered(entrance)),
        ("---\n".join(STREAM.format(name=name, entrance=entrance) for name in ("old", "new")), {}),
    ):
        with pytest.raises(InvalidDocument) as refused:
            check_documents(text, "b.yaml", known)
        (problem,) = refused.value.problems
        assert "belongs to stream 'old' already" in problem.message
        assert problem.line is not None
        assert text.splitlines()[problem.line - 1] == entrance


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_stream_may_keep_its_own_and_take_what_another_gives_up(entrance):
    known = registered(entrance)
    assert check_documents(STREAM.format(name="old", entrance=entrance), "b.yaml", known).streams
    text = STREAM.format(name="old", entrance="") + "---\n" + STREAM.format(name="new", entrance=entrance)
    assert len(check_documents(text, "b.yaml", known).streams) == 2


def test_a_port_of_udp_and_one_of_tcp_may_be_the_same_number():
    text = STREAM.format(name="new", entrance="tcp: {port: 8082}")
    assert check_documents(text, "b.yaml", registered("udp: {port: 8082}")).streams


def test_what_cannot_be_read_of_a_newer_version_is_left_to_it():
    document = StreamSpec.from_document({"stream": "old", "schema": {"n": "long"}}).as_document()
    assert check_documents(
        STREAM.format(name="new", entrance=ENTRANCES[0]), "b.yaml", {"old": {**document, "novel": 1}}
    ).streams


READINGS = """
stream: readings
schema: {device: string, ts: {type: timestamp, unit: ms}}
---
"""
TENS = """
pipeline: tens
input: {stream: readings}
event_time: {field: ts, delay: 1s}
steps:
  - window: {name: tens, tumbling: 10s, by: [device], aggregate: {n: count(*)}}
    emit: [{stream: tens}]
---
"""
MINUTES = """
pipeline: minutes
input: {stream: tens}
event_time: {field: window_start, delay: 0s}
steps:
  - window: {name: minutes, tumbling: 1m, by: [device], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: minutes}]
"""


class Topics:
    """Every topic is there."""

    def find(self, topic):
        return TopicDescription(topic, "id", 1)

    def ensure_stream_topic(self, spec, *, creates=True):
        return TopicDescription(spec.stream, "id", spec.partitions)

    def present_stream_topic(self, spec):
        return self.ensure_stream_topic(spec)

    def ensure_dead_letter_topic(self, job):
        return TopicDescription(f"{job}.dead-letter", "id", 1)

    def require_complete_log(self, topic):
        pass

    def ensure_room_for_records(self, topic):
        pass


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield ledger
    ledger.close()


def applier(ledger):
    return DocumentApplier(ledger, Topics(), lambda pipeline: None, lambda topic: {0: 0, 1: 0})


def rules(ledger):
    """Return job -> the watermark and the timeout of its current version."""
    found = {row.name: load_pipeline(ledger, row.name, row.version).event_time_rule for row in ledger.jobs()}
    return {job: (rule.watermark, rule.idle_timeout_ms) for job, rule in found.items()}


def test_a_new_pipeline_has_an_idle_timeout_and_one_that_reads_results_has_none(ledger):
    """However they are applied: together, or the reader when the job that emits is there."""
    expected = {"tens": ("partitions", 60_000), "minutes": ("newest", None)}
    applier(ledger).apply((READINGS + TENS + MINUTES).encode(), "all.yaml")
    assert rules(ledger) == expected
    (applied,) = applier(ledger).apply(MINUTES.encode(), "minutes.yaml")
    assert (applied.outcome, rules(ledger)) == ("unchanged", expected)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("watermark: partitions", ("partitions", None)),
        ("idle_timeout: 2m", ("newest", 120_000)),
        ("idle_timeout: null", ("newest", None)),
    ],
)
def test_what_the_document_of_a_reader_says_stays(ledger, said, rule):
    text = READINGS + TENS + MINUTES.replace("delay: 0s", f"delay: 0s, {said}")
    applier(ledger).apply(text.encode(), "all.yaml")
    assert rules(ledger)["minutes"] == rule


def test_an_idle_timeout_of_null_is_never_until_a_document_without_it_is_applied(ledger):
    never = (READINGS + TENS.replace("delay: 1s", "delay: 1s, idle_timeout: null")).encode()
    applier(ledger).apply(never, "tens.yaml")
    assert ledger.job_version("tens", 1).document["event_time"]["idle_timeout"] is None
    assert rules(ledger)["tens"] == ("partitions", None)
    (plan,) = applier(ledger).plan(TENS.encode(), "tens.yaml").jobs
    assert [change.change for change in plan.changes] == ["idle_timeout from never to 1m"]
    assert [one.outcome for one in applier(ledger).apply(never, "tens.yaml")] == ["unchanged"] * 2


@pytest.mark.guarantee("G25")
@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("delay: 7s", EventTimeRule(7_000, 60_000, 300_000, "partitions")),
        ("delay: 1s, idle_timeout: 5s", EventTimeRule(1_000, 5_000, 300_000, "partitions")),
        ("delay: 1s, max_ahead: 1h", EventTimeRule(1_000, 60_000, 3_600_000, "partitions")),
        ("delay: 1s, watermark: newest", EventTimeRule(1_000, 60_000, 300_000, "newest")),
    ],
)
def test_a_job_with_slices_takes_another_rule_of_event_time(ledger, said, rule):
    applier(ledger).apply((READINGS + TENS).encode(), "tens.yaml")
    epoch = ledger.begin_run("tens", 1).epoch
    offsets = {"readings": {0: 10, 1: 20}}
    ledger.plan_slice(a_slice(1, epoch, "tens", offsets_first={"readings": {0: 0, 1: 0}}, offsets=offsets))
    ledger.commit_checkpoint(a_checkpoint(1, epoch, "tens", emitted={"tens": 0}))
    before = ledger.slices("tens", 1, 1)
    (applied,) = applier(ledger).apply(TENS.replace("delay: 1s", said).encode(), "tens.yaml")
    assert (applied.outcome, applied.version) == ("changed", 2)
    assert load_pipeline(ledger, "tens", 2).event_time_rule == rule
    assert ledger.slices("tens", 1, 1) == before, "a replay uses what is recorded"
