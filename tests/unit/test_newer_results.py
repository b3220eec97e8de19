"""A ledger that was put back to an older copy, and a stream that has lost results, are noticed at the start of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import Conflict, LogChanged, LogUnavailable, NotFound
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, SliceKind, SliceStatus, WindowRange
from strandline.log.kafka_status import LogRange
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stages import Emit
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run import handed_slice, lost_results, newer_results, preparation
from strandline.processing.run.newer_results import require_newest_ledger
from strandline.processing.run.preparation import prepare_run
from strandline.processing.slices.rewind import plan_of_job
from strandline.results import newer_documents, shared_searches
from strandline.results.document import DocumentShape
from strandline.results.sinks.contract import batch_of
from strandline.results.sinks.registry import sink_writer
from strandline.results.writer import StoreWriter
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.sinks import OWN_STORES, emit_to, write_and_commit

DOCUMENTS = BOTH.replace("emit: [{elasticsearch: turbine-minute}]", "emit: [{elasticsearch: watts}, {stream: minutes}]")


class Written:
    """A record of a topic."""

    def __init__(self, **headers: object) -> None:
        self._headers = [(name.replace("_", "-"), str(value).encode()) for name, value in headers.items()]

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers


def result(emission: int, epoch: int, job: str = "power", digest: str = "") -> Written:
    digests = {"strandline_slice_digest": digest} if digest else {}
    return Written(strandline_job=job, strandline_emission=emission, strandline_epoch=epoch, **digests)


PLANNED_OTHERWISE = replace(a_slice(3, 2), offsets={"turbines": {0: 28, 1: 60}}).digest
"""Digest of slice 3, if the ledger had lost it and another run had planned it again."""


def letter(partition: int, offset: int) -> Written:
    return Written(stream="turbines", partition=partition, offset=offset)


class Lab:
    """A job with two committed slices and a planned third one; its third run begins."""

    def __init__(self, ledger: Ledger) -> None:
        self.api = Api(ledger)
        assert self.api.apply(DOCUMENTS).status_code == 200
        ledger.begin_run("power", 1)
        for number in (1, 2):
            ledger.plan_slice(a_slice(number))
            ledger.commit_checkpoint(a_checkpoint(number, result_offsets={"minutes": {0: 7}}))
        ledger.begin_run("power", 1)
        ledger.plan_slice(a_slice(3, 2))
        row = ledger.begin_run("power", 1)
        self.index = FakeIndex()
        self.run = JobRun(Settings(), ledger, self.index, row, load_pipeline(ledger, "power", 1))  # type: ignore[arg-type]
        self.records: dict[str, list[Written]] = {}
        self.since: dict[str, Mapping[int, int]] = {}
        self.asked: list[dict[str, Any]] = []
        self.document: dict[str, Any] | None = None
        self.generations: set[int] = set()
        """Generations with results of the job in the index, other than its own."""

    def last_records(
        self, bootstrap: str, index: object, topic: str, since: Mapping[int, int], is_wanted: Callable[[Any], bool]
    ) -> list[Written]:
        self.since[topic] = since
        return list(filter(is_wanted, self.records.get(topic, [])))

    def newer_document(self, url: str, alias: str, job: str, **bounds: Any) -> dict[str, Any] | None:
        self.asked.append({"alias": alias, "job": job, **bounds})
        return self.document if alias == "watts" else None

    def unknown_generation(self, url: str, alias: str, job: str, known: set[int], own: int) -> int | None:
        return next((one for one in sorted(self.generations) if one > own and one not in known), None)

    def refusal(self) -> str:
        with pytest.raises(Conflict) as caught:
            require_newest_ledger(self.run, "http://index")
        return str(caught.value)


class FakeIndex:
    def __init__(self) -> None:
        self.ids: dict[str, str | None] = {"turbines": "id-1", "minutes": "id-1", "minutes-2": "id-1"}
        """Id of each topic. None if it doesn't exist."""
        self.ends_of = {"turbines": {0: 30, 1: 60}, "minutes": {0: 7}, "minutes-2": {0: 0}}

    def topic_id(self, stream: str) -> str:
        if (topic_id := self.ids[stream]) is None:
            raise NotFound(f"Kafka has no topic {stream}")
        return topic_id

    def settings(self, stream: str) -> dict[str, str]:
        return {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}

    def starts(self, stream: str) -> dict[int, int]:
        return {0: 0, 1: 0}

    def ends(self, stream: str) -> dict[int, int]:
        return self.ends_of[stream]

    def checksums(self, stream: str, offsets: dict[int, int]) -> dict[int, int]:
        return dict.fromkeys(offsets, 0)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lab = Lab(ledger)
    monkeypatch.setattr(newer_results, "last_records", lab.last_records)
    monkeypatch.setattr(newer_results, "newer_document", lab.newer_document)
    monkeypatch.setattr(handed_slice, "last_records", lab.last_records)
    monkeypatch.setattr(newer_results, "unknown_generation", lab.unknown_generation)
    yield lab
    ledger.close()


def test_what_an_interrupted_slice_has_written_is_no_sign(lab: Lab) -> None:
    """Nor is anything of the slices and runs that the ledger knows, or of other jobs."""
    lab.records["minutes"] = [result(2, 1), result(3, 1), result(3, 2), result(3, 3), result(99, 99, "other")]
    lab.records["minutes"].append(result(3, 2, digest=a_slice(3, 2).digest))
    lab.records["power.dead-letter"] = [letter(0, 29), letter(1, 59), Written(index="watts-2026.01", document="x")]
    require_newest_ledger(lab.run, "http://index")
    assert lab.since == {"minutes": {0: 7}, "power.dead-letter": {0: 4}}
    expected = {"alias": "watts", "job": "power", "epoch": 3, "emission": 3, "after_ms": 0, "generation": 1}
    digests = {number: a_slice(number, 2 if number == 3 else 1).digest for number in (1, 2, 3)}
    assert lab.asked == [{**expected, "digests": digests}]


def test_only_what_the_last_slices_and_later_ones_can_have_emitted_is_searched(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer_results, "LAST_SLICES", 2)
    require_newest_ledger(lab.run, "http://index")
    assert [(one["after_ms"], list(one["digests"])) for one in lab.asked] == [(60_000, [2, 3])]


def test_each_alias_is_looked_at_from_where_its_own_stage_has_emitted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage that is new has emitted nothing."""
    first = lab.run.pipeline.stages[0]
    hourly = replace(first, name="hourly", emits=(Emit("elasticsearch", "hours"),))
    lab.run = replace(lab.run, pipeline=replace(lab.run.pipeline, stages=(hourly, first)))
    monkeypatch.setattr(newer_results, "LAST_SLICES", 1)
    require_newest_ledger(lab.run, "http://index")
    assert {one["alias"]: one["after_ms"] for one in lab.asked} == {"hours": 0, "watts": 120_000}
    lab.document = {"job": "power", "epoch": 2, "emission": 7}
    assert "the index of watts contains results of emission 7" in lab.refusal()


class MultiSearches:
    """Double of Elasticsearch with a document in one index. It records the indices that are refreshed and searched."""

    def __init__(self, found_in: str | None) -> None:
        self.found_in = found_in
        self.refreshed: list[str] = []
        self.searched: list[list[str]] = []

    def request(self, url: str, method: str, path: str, body: bytes = b"", **_: Any) -> Any:
        if path.endswith("/_refresh"):
            self.refreshed.append(path.removesuffix("/_refresh"))
            return None
        headers = [json.loads(line) for line in body.splitlines()[::2]]
        self.searched += [header["index"] for header in headers]
        hit = {"_source": {"strandline": {"emission": 7}}}
        return {
            "responses": [{"hits": {"hits": [hit] if self.found_in in header["index"] else []}} for header in headers]
        }


@pytest.mark.parametrize("found_in", [None, "watts-2020.12"])
def test_no_request_names_more_indices_than_elasticsearch_reads_in_a_line(
    monkeypatch: pytest.MonkeyPatch, found_in: str | None
) -> None:
    months = [f"watts-{year}.{month:02d}" for year in range(1960, 2021) for month in range(1, 13)]
    store = MultiSearches(found_in)
    monkeypatch.setattr(shared_searches, "request", store.request)
    monkeypatch.setattr(newer_documents, "indices_of", lambda *_: dict.fromkeys(months))
    origin = newer_documents.newer_document("http://index", "watts", "power", epoch=1, emission=1, after_ms=0)
    assert origin == (None if found_in is None else {"emission": 7})
    assert max(map(len, store.refreshed)) < 3_500
    wanted = [month for month in months if month >= "watts-1970.01"]
    assert ",".join(path.removeprefix("/") for path in store.refreshed).split(",") == wanted
    assert store.searched == [wanted]


def test_the_last_index_is_looked_at_when_event_time_has_come_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the year 9999 no month can be named."""
    store = MultiSearches(None)
    monkeypatch.setattr(shared_searches, "request", store.request)
    monkeypatch.setattr(newer_documents, "indices_of", lambda *_: ["watts-9999.11", "watts-9999.12"])
    newer_documents.newer_document("http://i", "watts", "power", epoch=1, emission=1, after_ms=253_402_300_800_000)
    assert (store.refreshed, store.searched) == (["/watts-9999.12"], [["watts-9999.12"]])


@pytest.mark.guarantee(
    "G28",
    "If the ledger is older than the results or dead letters of a job, the run writes nothing and reports what to do. "
    "It checks all sinks of the job, except sinks of packages that can't be queried.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
@pytest.mark.guarantee("G763")
@pytest.mark.parametrize(
    "newer",
    [result(4, 2), result(3, 4), result(3, 2, digest=PLANNED_OTHERWISE)],
    ids=["a later slice", "a later run", "a slice that was planned again"],
)
def test_a_result_that_the_ledger_cannot_know_is_refused(lab: Lab, newer: Written) -> None:
    lab.records["minutes"] = [result(3, 2), newer]
    refusal = lab.refusal()
    assert "slices up to 3 and 2 runs before this one" in refusal
    assert "stream minutes contains results of emission" in refusal
    assert "restore the newest copy of the ledger, then run strandline job start power" in refusal


def test_a_dead_letter_of_a_record_that_no_slice_holds_is_refused(lab: Lab) -> None:
    lab.records["power.dead-letter"] = [letter(0, 29), letter(1, 60)]
    assert "contains a dead letter of offset 60 of stream turbines, partition 1" in lab.refusal()


def test_a_document_that_the_ledger_cannot_know_is_refused(lab: Lab) -> None:
    lab.document = {"job": "power", "epoch": 2, "emission": 7}
    assert "the index of watts contains results of emission 7, by run 2" in lab.refusal()
    require_newest_ledger(lab.run, None)


@pytest.mark.guarantee("G763")
def test_a_document_of_a_slice_that_was_planned_again_is_refused(lab: Lab) -> None:
    """The numbers alone don't show the loss."""
    lab.document = {"job": "power", "epoch": 2, "emission": 3, "slice_digest": PLANNED_OTHERWISE}
    assert (
        "contains results of emission 3 of a slice with other records or another watermark, by run 2" in lab.refusal()
    )


@pytest.mark.guarantee(
    "G766",
    "A ledger from before a reset or a backfill starts no job whose results of that generation exist. It shows no "
    "older generation again, and gives the number of the generation to no other backfill.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_results_of_a_reset_or_backfill_that_the_ledger_does_not_contain_are_refused(lab: Lab) -> None:
    lab.run.ledger.request_backfill(
        "power", 1, (0, None), {"per_minute": WindowRange(0, 60_000)}, 2, 10, {"turbines": 1}
    )
    lab.generations = {2}
    require_newest_ledger(lab.run, "http://index")
    lab.generations = {2, 3}
    assert "the index of watts contains results of generation 3, of a reset or a backfill" in lab.refusal()


@pytest.mark.guarantee("G766")
def test_the_number_of_a_generation_that_the_ledger_does_not_contain_is_not_used_again(lab: Lab) -> None:
    windows = {"per_minute": WindowRange(0, 60_000)}
    row = lab.run.ledger.request_backfill("power", 1, (0, None), windows, 2, 10, {"turbines": 1}, generation_taken=4)
    assert row.generation == 5


def emit_by(lab: Lab, settings: Settings, emit: Emit) -> StoreWriter:
    """The lab's run emits to this sink instead; a writer of it."""
    stage = replace(lab.run.pipeline.stages[0], emits=(emit,))
    lab.run = replace(lab.run, settings=settings, pipeline=replace(lab.run.pipeline, stages=(stage,)))
    fields = (("device", "string"),), (("n", "long"),)
    return sink_writer(settings, DocumentShape("power", "power", stage.name, 1, *fields, is_elsewhere=True), emit)


@pytest.mark.guarantee("G28")
@pytest.mark.parametrize("kind", OWN_STORES)
def test_rows_that_the_ledger_cannot_know_are_refused(lab: Lab, tmp_path: Path, kind: str) -> None:
    """The slice would be cut again, and its rows would exist twice."""
    settings = Settings(sql_sink_url=f"sqlite:///{tmp_path / 'results.sqlite'}")
    emit = emit_to(kind, tmp_path)
    writer: Any = emit_by(lab, settings, emit)
    require_newest_ledger(lab.run, None)
    writer.prepare(None)
    other = replace(writer, shape=replace(writer.shape, job="other"))
    other.prepare(None)
    write_and_commit(writer, [batch_of(writer.shape, [1])], 2, 3)
    write_and_commit(other, [batch_of(writer.shape, [2])], 2, 99)
    require_newest_ledger(lab.run, None)
    write_and_commit(writer, [batch_of(writer.shape, [3])], 2, 4)
    found = f"{kind} {emit.name} contains results of emission 4"
    assert f"slices up to 3 and 2 runs before this one, and {found}" in lab.refusal()


@pytest.mark.guarantee("G763")
@pytest.mark.parametrize("kind", OWN_STORES)
def test_rows_of_a_slice_that_was_planned_again_are_refused(lab: Lab, tmp_path: Path, kind: str) -> None:
    settings = Settings(sql_sink_url=f"sqlite:///{tmp_path / 'results.sqlite'}")
    emit = emit_to(kind, tmp_path)
    writer: Any = emit_by(lab, settings, emit)
    writer.prepare(None)
    write_and_commit(writer, [batch_of(writer.shape, [2])], 2, 2, a_slice(2).digest)
    require_newest_ledger(lab.run, None)
    write_and_commit(writer, [batch_of(writer.shape, [3])], 2, 3, PLANNED_OTHERWISE)
    assert f"{emit.kind} {emit.name} contains results of emission 3 of a slice with other records" in lab.refusal()


@pytest.mark.guarantee(
    "G763",
    "Each result contains the digest of the slice that emitted it. A start compares the digests of the last slices "
    "with the ledger, so it notices a slice that was lost and planned again under the same number.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_the_digest_of_a_slice_depends_on_what_determines_its_results_and_on_nothing_else(lab: Lab) -> None:
    planned = a_slice(3, 2)
    assert lab.run.ledger.slices("power", 3, 3)[0].digest == planned.digest, "the ledger returns what was planned"
    same = replace(planned, job="other", epoch=9, cut_time_ms=1, planned_ms=2, status=SliceStatus.COMMITTED)
    assert same.digest == planned.digest
    changes: list[dict[str, Any]] = [
        {"offsets": {"turbines": {0: 30, 1: 59}}},
        {"watermark_ms": 2_701},
        {"watermark_ms": None},
        {"rule": EventTimeRule(delay_ms=101, idle_timeout_ms=None)},
        {"silence_ms": {"turbines": {0: 5}}},
        {"kind": SliceKind.DRAIN},
        {"version": 2},
        {"lookup_versions": {"sites": 2}},
    ]
    digests = {replace(planned, **change).digest for change in changes}
    assert len(digests | {planned.digest}) == len(changes) + 1


@pytest.mark.guarantee("G763")
@pytest.mark.parametrize("streams", [("turbines",), ("meters", "turbines")], ids=["one stream", "the second stream"])
def test_the_time_of_a_plan_is_in_the_digest_if_it_bounds_event_time(streams: tuple[str, ...]) -> None:
    """Producers set the log times of turbines, so the time of the plan decides which windows the slice closes."""
    one = EventTimeRule(delay_ms=100, idle_timeout_ms=None)
    rule = replace(one, by_stream=tuple((stream, one) for stream in streams)) if streams[1:] else one
    planned = replace(a_slice(3, 2), rule=rule.bounded_by_plan({"turbines"}))
    later = replace(planned, planned_ms=planned.planned_ms + 1)
    assert later.digest != planned.digest
    assert replace(later, rule=rule).digest == replace(planned, rule=rule).digest


def test_a_ledger_that_has_lost_the_job_is_refused(lab: Lab, tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'empty.sqlite'}")
    Api(ledger).apply(DOCUMENTS)
    lab.run = JobRun(Settings(), ledger, FakeIndex(), ledger.begin_run("power", 1), load_pipeline(ledger, "power", 1))  # type: ignore[arg-type]
    lab.records["power.dead-letter"] = [letter(0, 0)]
    assert "no slice and 0 runs before this one" in lab.refusal()
    ledger.close()


def test_a_run_looks_after_it_has_fenced_the_older_ones(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    fenced: list[str] = []
    monkeypatch.setattr(preparation, "fence_older_runs", lambda *_: fenced.append("older runs"))
    lab.records["minutes"] = [result(4, 2)]
    plan = plan_of_job(lab.run.ledger, lab.run.pipeline)
    with pytest.raises(Conflict, match="older than what job power has written"):
        prepare_run(lab.run, None, plan, None)
    assert fenced == ["older runs"]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return what happens at the next waits for a broker with outdated metadata. Each takes a second."""
    now_s, happens = [0], list[Callable[[], None]]()

    def sleep(_: float) -> None:
        now_s[0] += 1
        if happens:
            happens.pop(0)()

    monkeypatch.setattr(
        lost_results, "time", SimpleNamespace(sleep=sleep, monotonic_ns=lambda: now_s[0] * 1_000_000_000)
    )
    return happens


@pytest.mark.guarantee("G35")
@pytest.mark.parametrize(
    ("topic_id", "ends", "sentence"),
    [
        (
            "id-1",
            {0: 5},
            "partition 0 of stream minutes, to which job power emits, ends at offset 5, but .* offset 7: ",
        ),
        ("id-1", {}, "partition 0 of stream minutes, to which job power emits, is not there, but .* offset 7: "),
        ("id-2", {0: 9}, "stream minutes, to which job power emits, is another topic than .* id-2, known is id-1"),
        (None, {}, "the topic of stream minutes, to which job power emits, was deleted"),
    ],
    ids=["cut off", "fewer partitions", "made anew", "deleted"],
)
@pytest.mark.usefixtures("waits")
def test_a_stream_that_has_lost_results_stops_the_run_before_it_writes_any(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, topic_id: str | None, ends: dict[int, int], sentence: str
) -> None:
    """The remedy works: the job goes on in a stream of another name."""
    fenced: list[str] = []
    monkeypatch.setattr(preparation, "fence_older_runs", lambda *_: fenced.append("older runs"))
    lab.index.ids["minutes"], lab.index.ends_of["minutes"] = topic_id, ends
    with pytest.raises(LogChanged, match=f"{sentence}.*with a stream of another name in place of minutes and start"):
        prepare_run(lab.run, None, plan_of_job(lab.run.ledger, lab.run.pipeline), None)
    assert fenced == []
    lab.api.log.ranges["turbines"] = LogRange({0: 0, 1: 0}, {0: 30, 1: 60})
    applied = lab.api.apply(DOCUMENTS.replace("{stream: minutes}", "{stream: minutes-2}"))
    assert applied.status_code == 200, applied.text
    row = lab.run.ledger.begin_run("power", 1, present_version=True)
    lab.run = replace(lab.run, row=row, pipeline=load_pipeline(lab.run.ledger, "power", row.version))
    prepare_run(lab.run, None, plan_of_job(lab.run.ledger, lab.run.pipeline), None)
    assert fenced == ["older runs"]


def test_what_a_broker_lacks_for_a_moment_is_not_lost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, waits: list[Callable[[], None]]
) -> None:
    monkeypatch.setattr(preparation, "fence_older_runs", lambda *_: None)
    lab.index.ids["minutes"], lab.index.ends_of["minutes"] = None, {0: 5}
    waits.append(lambda: lab.index.ids.update(minutes="id-1"))
    waits.append(lambda: lab.index.ends_of.update(minutes={0: 8}))
    prepare_run(lab.run, None, plan_of_job(lab.run.ledger, lab.run.pipeline), None)
    assert waits == []


@pytest.mark.parametrize("asked", ["settings", "starts"])
def test_a_broker_that_does_not_know_the_topic_yet_has_the_run_tried_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    def no_topic(*_: object) -> None:
        raise NotFound("Kafka has no topic turbines")

    monkeypatch.setattr(lab.run.index, asked, no_topic)
    with pytest.raises(LogUnavailable, match="a broker does not know the topic of stream turbines"):
        prepare_run(lab.run, None, plan_of_job(lab.run.ledger, lab.run.pipeline), None)


def test_where_a_job_begins_is_recorded_before_a_run_does_anything_that_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    Api(ledger).apply(DOCUMENTS.replace("{stream: turbines}", "{stream: turbines, start: latest}"))
    run = JobRun(Settings(), ledger, FakeIndex(), ledger.begin_run("power", 1), load_pipeline(ledger, "power", 1))  # type: ignore[arg-type]

    def away(*_: object) -> None:
        raise LogUnavailable("Kafka does not answer")

    monkeypatch.setattr(preparation, "fence_older_runs", away)
    with pytest.raises(LogUnavailable):
        prepare_run(run, None, plan_of_job(ledger, run.pipeline), None)
    origin = ledger.last_slice("power")
    assert origin is not None and origin.offsets == {"turbines": {0: 30, 1: 60}}
    ledger.close()
