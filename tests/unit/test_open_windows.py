"""Windows while they are open: what is shown of them, how it is written and deleted, and that nothing waits for it."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import Conflict, IndexUnavailable, InvalidDocument
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.emission import open_windows as shown_by
from strandline.processing.emission.keyed_task import KeyedTask, StagePart
from strandline.processing.emission.open_windows import (
    ClosedWindowsSweep,
    OpenEmission,
    OpenWindows,
    dropped_indices,
    open_emissions,
)
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.upgrade import Effect, changes_between
from strandline.processing.source.slice_rows import encode
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.index_settings import IndexSettings
from strandline.results.mapping import build_mapping
from strandline.results.open_windows import index as index_module
from strandline.results.open_windows.documents import OpenShape
from strandline.results.open_windows.index import OpenIndex
from tests.support.made_indices import MadeInMemory
from tests.support.stage_batches import MAY_1_NOON_MS, MINUTE_MS, stage_batch
from tests.support.waiting import stretched, wait_until
from tests.unit.test_keyed_task import Engine, chunk_of, made_up, work_of

ROOT = Path(__file__).parents[2]
SHAPE = DocumentShape("load", "farm", "minutes", 3, (("device", "string"),), (("n", "long"),))
EVERY_S = 10.0


def pipeline_of(
    window: str, *, emit: str = "{elasticsearch: {name: out, updates: 5s}}", then: str = ""
) -> CheckedPipeline:
    text = f"""
stream: in
schema: {{k: string, ts: {{type: timestamp, unit: ms}}, v: double}}
---
pipeline: job
input: {{stream: in}}
event_time: {{field: ts, delay: 2s, idle_timeout: null}}
steps:
  - window: {{name: w, {window}, aggregate: {{n: count(*), v: sum(v)}}}}
{then}    emit: [{emit}]
"""
    return read_pipeline(text.encode(), "test")


def results(outcomes: Iterator[Any]) -> dict[tuple[Any, ...], Any]:
    """(start, end, key) -> values of each result."""
    found = {}
    for one in outcomes:
        assert isinstance(one, DeskResult)
        body = json.loads(one.document.source)
        assert ("open" in body["strandline"]) == one.document.index.endswith(".open")
        key = (body["window"]["start"], body["window"]["end"], body.get("k"))
        assert key not in found
        found[key] = (body["n"], body["v"])
    return found


@pytest.mark.guarantee(
    "G530",
    "Open windows are shown with the values that would be emitted if no more records arrived, in any slices and "
    "buckets. They don't change the results.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize(
    "window",
    [
        "tumbling: 10s, by: [k]",
        "sliding: {size: 10s, every: 2s}, by: [k]",
        "cumulative: {size: 20s, step: 5s}, by: [k]",
        "session: {gap: 3s, max: 20s}, by: [k]",
        "tumbling: 10s",
    ],
)
def test_what_is_shown_is_what_would_be_emitted_if_nothing_more_came(window: str) -> None:
    """After each of many slices: all that a drain would then emit; of cumulative windows only those that hold something new."""
    pipeline, random = pipeline_of(window), Random(3)
    lines = [
        json.dumps(
            {"k": random.choice("abc"), "ts": 1_000_000 + 250 * at - random.randrange(1_500), "v": random.random()}
        )
        for at in range(240)
    ]
    for cut in (1, 7, 100, 240):
        desk = Desk(pipeline, slice_records=7)
        list(desk.feed(DeskRecords([one.encode() for one in lines[:cut]], [0] * cut)))
        list(desk.end_slice())
        shown = results(desk.open_windows())
        expected = results(desk.drain())
        assert shown
        if "cumulative" in window:
            assert {key[2] for key in shown} == {key[2] for key in expected}
            assert shown.items() <= expected.items()
        else:
            assert shown == expected


def test_steps_behind_a_window_say_what_is_shown() -> None:
    pipeline = pipeline_of("tumbling: 10s, by: [k]", then="  - where: n > 1\n  -\n")
    desk = Desk(pipeline)
    lines = [json.dumps({"k": key, "ts": 1_000_000, "v": 1.0}).encode() for key in "aab"]
    list(desk.feed(DeskRecords(lines, [0] * 3)))
    assert {key[2] for key in results(desk.open_windows())} == {"a"}


class Store:
    """Double of the indices of open windows."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.writes: list[tuple[set[str], set[str], int]] = []
        self.made = 0
        self.error: Exception | None = None
        self.refused = 0
        self.busy = threading.Event()
        self.busy.set()

    def index(self, _url: str, emit_name: str) -> Any:
        store = self

        class Index:
            name = f"{emit_name}.open"

            def make_sure(self, _shape: OpenShape, _settings: IndexSettings) -> None:
                store.made += 1

            def write(self, documents: Mapping[str, bytes], gone: Sequence[str], number: int) -> int:
                assert store.busy.wait(stretched(20))
                if store.error is not None:
                    raise store.error
                store.writes.append((set(documents), set(gone), number))
                store.documents |= {one: json.loads(source) for one, source in documents.items()}
                for one in gone:
                    store.documents.pop(one, None)
                return store.refused

        return Index()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(shown_by, "OpenIndex", store.index)
    return store


def emission(made: MadeInMemory | None = None) -> OpenEmission:
    writer = ElasticsearchWriter("http://nowhere", SHAPE, IndexSettings(updates_ms=int(EVERY_S * 1000)), made)
    (one,) = open_emissions([writer], WindowShape(60_000, 60_000))
    return one


def test_a_backfill_shows_no_open_windows() -> None:
    writer = ElasticsearchWriter("http://nowhere", replace(SHAPE, is_shown=False), IndexSettings(updates_ms=10_000))
    assert open_emissions([writer], WindowShape(60_000, 60_000)) == []


def rows(*counts: tuple[str, int]) -> Callable[[], pa.RecordBatch]:
    batch = stage_batch(SHAPE.fields, list(counts))
    return lambda: batch.append_column("@problem", pa.nulls(batch.num_rows, pa.string()))


@pytest.mark.guarantee(
    "G532",
    "The index of open windows doesn't grow forever: documents of closed windows are deleted, and the number of shown "
    "windows is bounded. An index of another owner is never used.",
    promise="stored-data-is-bounded",
)
def test_only_what_has_changed_is_written_and_what_is_gone_deleted(store: Store) -> None:
    made = MadeInMemory()
    shown, one = OpenWindows(), emission(made)
    windows = shown_by._BucketWindows(one)
    counts = [
        shown.show(windows, one, 7, number, rows(*values))
        for number, values in enumerate(
            [[("a", 1), ("b", 1)], [("a", 2), ("b", 1)], [("a", 2), ("b", 1)], [("b", 1)], []], 1
        )
    ]
    assert [(len(new), len(gone), number) for new, gone, number in store.writes] == [
        (2, 0, 1),
        (1, 0, 2),
        (0, 1, 4),
        (0, 1, 5),
    ]
    assert [one.written for one in counts] == [2, 1, 0, 0, 0]
    assert (store.documents, store.made, made.names()) == ({}, 1, {"load.open"})


def test_a_document_says_that_it_is_of_an_open_window_and_keeps_its_id(store: Store) -> None:
    shown, one = OpenWindows(), emission()
    for epoch, number in ((7, 1), (8, 2)):
        shown.show(shown_by._BucketWindows(one), one, epoch, number, rows(("a", number)))
    ((identity, document),) = store.documents.items()
    origin = {"job": "farm", "stage": "minutes", "version": 3, "epoch": 8, "emission": 2, "open": True}
    assert (document["n"], document["strandline"]) == (2, origin)
    (result,) = SHAPE.documents(stage_batch(SHAPE.fields, [("a", 1)]), 1, 1)
    assert identity != result.id
    assert build_mapping(one.shape)["properties"]["strandline"]["properties"]["open"] == {"type": "boolean"}
    assert "open" not in build_mapping(SHAPE)["properties"]["strandline"]["properties"]


def test_the_id_of_a_window_whose_end_moves_follows_from_its_start() -> None:
    ids = {}
    for moves in (False, True):
        shape = OpenShape.of(SHAPE, ends_move=moves)
        batches = [stage_batch(SHAPE.fields, [("a", 1)], size_ms=end) for end in (1, 2)]
        ids[moves] = {one.id for batch in batches for one in shape.documents(batch, 1, 1)}
    assert (len(ids[False]), len(ids[True])) == (2, 1)
    assert SessionShape(60_000, 1_000).ends_move


@pytest.mark.guarantee("G531")
def test_what_a_store_does_not_take_is_dropped_counted_and_shown_by_the_next_update(store: Store) -> None:
    shown, one = OpenWindows(), emission()
    windows = shown_by._BucketWindows(one)
    store.error = IndexUnavailable("busy")
    failed = shown.show(windows, one, 7, 1, rows(("a", 1)))
    assert (failed.written, failed.dropped, failed.why) == (0, 1, "busy")
    store.error, store.refused = None, 1
    assert shown.show(windows, one, 7, 2, rows(("a", 1))).dropped == 1
    store.refused = 0
    assert shown.show(windows, one, 7, 3, rows(("a", 1))).written == 1
    assert store.made == 3, "it may have been deleted"
    broken = shown.show(windows, one, 7, 4, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert (broken.dropped, broken.why) == (1, "ZeroDivisionError: division by zero")


@pytest.mark.guarantee("G531")
def test_what_a_store_may_have_lost_is_written_anew_and_what_is_gone_still_deleted(store: Store) -> None:
    """A user deletes the index while a job runs: windows of silent devices are also shown again."""
    shown, one = OpenWindows(), emission()
    windows = shown_by._BucketWindows(one)
    shown.show(windows, one, 7, 1, rows(("a", 1), ("b", 1), ("c", 1)))
    for number, (error, refused) in enumerate([(None, 1), (IndexUnavailable("no answer"), 0)], 2):
        store.documents.clear()
        store.error, store.refused = error, refused
        assert shown.show(windows, one, 7, number, rows(("a", number), ("b", 1), ("c", 1))).dropped == 1
        store.error, store.refused = None, 0
        assert shown.show(windows, one, 7, number, rows(("a", number), ("b", 1), ("c", 1))).written == 3
        assert sorted((one["device"], one["n"]) for one in store.documents.values()) == [
            ("a", number),
            ("b", 1),
            ("c", 1),
        ]
    store.error = IndexUnavailable("no answer")
    shown.show(windows, one, 7, 4, rows(("a", 4), ("b", 1)))
    store.error = None
    shown.show(windows, one, 7, 4, rows(("a", 4), ("b", 1)))
    assert sorted(one["device"] for one in store.documents.values()) == ["a", "b"]


def test_what_failed_is_tried_again_although_no_slice_follows(store: Store) -> None:
    now_s = [100.0]
    shown, one = OpenWindows(lambda: now_s[0]), emission()
    store.error = IndexUnavailable("busy")
    shown.submit("farm", 0, one, 7, 1, rows(("a", 1)))
    wait_until(lambda: shown._counts.dropped == 1)
    store.error, now_s[0] = None, now_s[0] + EVERY_S
    with shown._changed:
        shown._changed.notify()
    wait_until(lambda: len(store.documents) == 1)


@pytest.mark.guarantee(
    "G622",
    "Documents of open windows that a job no longer shows, because a version has no `updates` or no such emission, "
    "are deleted when windows of that version close. Documents of other jobs stay.",
    promise="stored-data-is-bounded",
)
def test_what_an_emission_without_updates_has_left_goes_with_the_first_window_that_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upgrade took `updates` away, or the emission: nothing would delete what was open then."""
    asked: list[tuple[str, object]] = []
    left = {"old.open": 2, "load.open": 0}

    def forget(index: OpenIndex, job: str, closes_ms: int | None) -> int:
        asked.append((index.name, closes_ms))
        left[index.name], found = 0, left[index.name]
        return found

    monkeypatch.setattr(OpenIndex, "forget_closed", forget)
    dropped = dropped_indices({"old-2026.11", "old.open", "load.open", "load-2026.11"}, "http://nowhere", [emission()])
    assert [one.name for one in dropped] == ["old.open"]
    sweep = ClosedWindowsSweep("farm", [], dropped)
    sweep.closed(None)
    assert asked == []
    sweep.closed(MINUTE_MS)
    sweep.close()
    assert set(asked) == {("old.open", None)} and left["old.open"] == 0


@pytest.mark.guarantee("G622")
def test_a_sweep_of_all_asks_for_the_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[Any] = []

    def ask(_url: str, _method: str, _path: str, **more: Any) -> Any:
        bodies.append(more.get("body"))
        return {"hits": {"hits": []}}

    monkeypatch.setattr(index_module, "request", ask)
    assert OpenIndex("http://nowhere", "load").forget_closed("farm", None) == 0
    assert bodies[-1]["query"] == {"bool": {"filter": [{"term": {"strandline.job": "farm"}}]}}


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_store_that_takes_no_deletes_is_asked_once_a_look(monkeypatch: pytest.MonkeyPatch, is_dropped: bool) -> None:
    """A disk above its flood stage, a block, a missing right: each delete is refused alone, in an answer that is no error."""
    rounds: list[Any] = []

    def ask(_url: str, _method: str, path: str, **_: Any) -> Any:
        if path == "/_bulk":
            rounds.append(path)
            assert len(rounds) < 9, "it is asked endlessly"
            return {"errors": True, "items": [{"delete": {"status": status}} for status in (429, 403)]}
        return {"hits": {"hits": [{"_id": "x"}, {"_id": "y"}]}}

    monkeypatch.setattr(index_module, "request", ask)
    old = OpenIndex("http://nowhere", "old")
    sweep = ClosedWindowsSweep("farm", [], [old]) if is_dropped else ClosedWindowsSweep("farm", [emission()])
    sweep._closes_ms = MINUTE_MS
    sweep.sweep()
    assert len(rounds) == 1


@pytest.mark.guarantee("G532")
def test_more_open_windows_than_are_shown_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_by, "OPEN_WINDOWS_MAX", 2)
    one = emission()
    counts = OpenWindows().show(shown_by._BucketWindows(one), one, 7, 1, rows(("a", 1), ("b", 1), ("c", 1)))
    assert (counts.written, counts.dropped) == (2, 1)


@pytest.mark.guarantee(
    "G531",
    "A job never waits for the index of open windows, and doesn't fail because of it. Refused updates are dropped and "
    "counted. The next update shows their windows, and everything that a deleted index contained.",
    promise="a-failing-store-costs-no-result",
)
def test_a_job_never_waits_and_what_is_overtaken_is_not_written(store: Store) -> None:
    """The store hangs while slices come; when it goes on, the last of them is written, but no sooner than the emission says."""
    now_s = [100.0]
    shown, one = OpenWindows(lambda: now_s[0]), emission()
    store.busy.clear()
    for number in range(1, 5):
        shown.submit("farm", 0, one, 7, number, rows(("a", number)))
        if number == 1:
            wait_until(lambda: shown._windows[("farm", 0, "minutes", "load")].rows is None)
    store.busy.set()
    wait_until(lambda: len(store.writes) == 1)
    time.sleep(0.05)  # sleeps: long enough for a wrong second write
    assert [number for _, _, number in store.writes] == [1]
    now_s[0] += EVERY_S
    shown.submit("farm", 0, one, 7, 5, rows(("a", 5)))
    wait_until(lambda: len(store.writes) == 2)
    assert [number for _, _, number in store.writes] == [1, 5]
    wait_until(lambda: shown._counts.written == 2)
    assert (shown.take_counts().written, shown.take_counts().written) == (2, 0)


class UpdatingEngine(Engine):
    """Shows open windows: by device, of which each is in one bucket; and of all, which are merged from parts."""

    pipeline = read_pipeline(
        b"""
stream: farm
schema: {device: string, ts: {type: timestamp, unit: ms}, power: double, rated: double}
---
pipeline: power
input: {stream: farm}
event_time: {field: ts, delay: 0s, max_ahead: null}
steps:
  - window: {name: tens, tumbling: 10s, by: [device], aggregate: {n: count(*), load: sum(power)}}
    emit: [{elasticsearch: {name: tens, updates: 5s}}]
  - window: {name: all, tumbling: 1m, aggregate: {n: count(*), load: sum(power)}}
    from: farm
    emit: [{elasticsearch: {name: all, updates: 5s}}]
""",
        "test",
    )


@pytest.mark.guarantee("G530")
def test_what_is_shown_is_the_same_in_any_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some slices, each of which leaves what is open then."""
    left: dict[str, list[dict[str, Any]]] = defaultdict(list)

    class Kept:
        def submit(self, _job: str, _bucket: int, one: str, _epoch: int, _number: int, rows: Callable[[], Any]) -> None:
            left[one] += rows().to_pylist()

        def take_counts(self) -> shown_by.OpenCounts:
            return shown_by.OpenCounts(1, 2, "why")

    monkeypatch.setattr("strandline.processing.emission.keyed_task.open_windows", Kept)
    monkeypatch.setattr(KeyedTask, "open_emissions", [(0, "tens"), (1, "all")])
    lines, found = made_up(600, 3), []
    for buckets in (1, 3):
        left.clear()
        engine = UpdatingEngine(buckets, monkeypatch)
        for number in range(1, 4):
            chunks = [
                chunk_of(partition, 0, values[len(values) * (number - 1) // 3 : len(values) * number // 3])
                for partition, values in lines.items()
            ]
            bucket_of: dict[int, list[tuple[StagePart, bytes]]] = defaultdict(list)
            process = KeyedTask.process

            def spied(
                task: KeyedTask, bucket: int, rows: Any, state: Any, process: Any = process, kept: Any = bucket_of
            ) -> Any:
                done = process(task, bucket, rows, state)
                for target, stage, part in done.open_parts:
                    kept[target].append((StagePart(False, stage, encode(done.work)), part))
                return done

            with monkeypatch.context() as patched:
                patched.setattr(KeyedTask, "process", spied)
                work = work_of(number, None if number == 1 else (number - 1) * 3_000, number * 3_000)
                outcomes = engine.run(chunks, work)
            assert {(one.updates, one.updates_dropped, one.why_dropped) for one in outcomes[:buckets]} == {
                (1, 2, "why")
            }
            for target, parts in bucket_of.items():
                frame = {
                    "outcome": Blobs(),
                    "part": Blobs(msgspec.msgpack.encode(part) for part, _ in parts),
                    "rows": Blobs(rows for _, rows in parts),
                }
                monkeypatch.setattr("strandline.processing.emission.keyed_task.frame_of", len)
                engine.keyed.merge((engine.source.bucket_keys[target],), frame)  # type: ignore[arg-type]
        found.append({stage: sorted(map(str, rows)) for stage, rows in left.items()})
    assert found[0] == found[1]
    assert len(found[0]["tens"]) > 20
    assert len(found[0]["all"]) == 3


class Blobs(list[bytes]):
    def tolist(self) -> list[bytes]:
        return list(self)


def test_a_replay_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedTask, "open_emissions", property(lambda _task: 1 / 0))
    UpdatingEngine(1, monkeypatch).run([chunk_of(0, 0, made_up(20, 1)[0])], work_of(1, None, None, emits=False))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers by "METHOD path", and under "sent" what was asked."""
    answers: dict[str, Any] = {"sent": []}

    def request(_url: str, method: str, path: str, *, body: Any = None, **_: Any) -> Any:
        answers["sent"].append((method, path, body))
        return answers.get(f"{method} {path}", {})

    monkeypatch.setattr(index_module, "request", request)
    monkeypatch.setattr(
        index_module, "make_index", lambda _url, name, *_, **more: answers["sent"].append(("MAKE", name, more))
    )
    return answers


OPEN_SHAPE = OpenShape.of(SHAPE, ends_move=False)


@pytest.mark.guarantee("G532")
def test_an_index_is_made_once_and_what_is_somebody_elses_left_alone(asked: dict[str, Any]) -> None:
    index = OpenIndex("http://nowhere", "load")
    index.make_sure(OPEN_SHAPE, IndexSettings(lifecycle="yearly"))
    template, made = asked["sent"][1:]
    assert (template[:2], template[2]["index_patterns"]) == (
        ("PUT", "/_index_template/strandline-load.open"),
        ["load.open"],
    )
    assert made == ("MAKE", "load.open", {"is_shown": False, "settings": IndexSettings()})
    mapping = build_mapping(OPEN_SHAPE)
    for found, steps in (({"load.open": {"mappings": mapping}}, ["GET"]), ({}, ["GET", "PUT", "MAKE"])):
        asked["sent"].clear()
        asked["GET /load.open"] = found
        index.make_sure(OPEN_SHAPE)
        assert [one[0] for one in asked["sent"]] == steps
    other = build_mapping(replace(OPEN_SHAPE, aggregates=(("n", "double"),)))
    asked["sent"].clear()
    asked["GET /load.open"] = {"load.open": {"mappings": other}}
    index.make_sure(OPEN_SHAPE)
    assert [one[0] for one in asked["sent"]] == ["GET", "DELETE", "PUT", "MAKE"], "n had another type"
    for foreign in ({"load.open": {"mappings": {}}}, {"other": {"mappings": mapping}}):
        asked["GET /load.open"] = foreign
        with pytest.raises(Conflict, match="rename or delete it, or emit without updates"):
            index.make_sure(OPEN_SHAPE)


def test_an_update_is_a_versioned_write_and_what_has_closed_is_deleted(asked: dict[str, Any]) -> None:
    index = OpenIndex("http://nowhere", "load")
    asked["POST /_bulk"] = {
        "items": [{"index": {"status": one}} for one in (200, 409, 429)] + [{"delete": {"status": 404}}]
    }
    assert index.write({"x": b'{"n":1}'}, ["y"], 42) == 1
    lines = asked["sent"][-1][2].split(b"\n")
    assert [json.loads(one) for one in lines[:3]] == [
        {"index": {"_index": "load.open.write", "_id": "x", "version": 42, "version_type": "external_gte"}},
        {"n": 1},
        {"delete": {"_index": "load.open.write", "_id": "y"}},
    ]
    asked["POST /load.open/_search"] = {"hits": {"hits": [{"_id": "x"}]}}
    asked["POST /_bulk"] = {"items": [{"delete": {"status": 200}}]}
    assert index.forget_closed("farm", MAY_1_NOON_MS + MINUTE_MS) == 1
    query = asked["sent"][-2][2]["query"]["bool"]["filter"]
    assert query[1]["range"]["@timestamp"]["lte"] == MAY_1_NOON_MS + MINUTE_MS
    assert json.loads(asked["sent"][-1][2]) == {"delete": {"_index": "load.open", "_id": "x"}}


def test_what_can_show_no_open_windows_says_so() -> None:
    text = (ROOT / "examples" / "joins.yaml").read_text()
    for old, new, said in (
        ("[{elasticsearch: shop-shipped}]", "[{elasticsearch: {name: s, updates: 10s}}]", "a join has none"),
        ("[{elasticsearch: shop-hour}]", "[{elasticsearch: {name: s, updates: 1s}}]", "expected at least 5s"),
    ):
        assert old in text
        with pytest.raises(InvalidDocument, match=said):
            read_pipeline(text.replace(old, new).encode(), "test")
    records = (ROOT / "examples" / "records.yaml").read_text()
    name = (
        next(line for line in records.splitlines() if "- emit:" in line).rpartition("elasticsearch: ")[2].rstrip("}] ")
    )
    with pytest.raises(InvalidDocument, match="records are emitted without a window"):
        read_pipeline(records.replace(f": {name}}}", f": {{name: {name}, updates: 10s}}}}").encode(), "test")


def test_a_pipeline_with_updates_is_explained_and_may_begin_to_show_them_by_an_upgrade() -> None:
    new = pipeline_of("tumbling: 10s, by: [k]")
    (stage,) = pipeline_graph(new)["stages"]
    assert stage["emits"] == ["elasticsearch: out", "elasticsearch: out.open, open windows every 5s"]
    old = pipeline_of("tumbling: 10s, by: [k]", emit="{elasticsearch: out}")
    (change,) = changes_between(old, new)
    assert (change.change, change.effect) == ("how often open windows of out are shown", Effect.SAFE)
    assert read_documents((ROOT / "examples" / "updates.yaml").read_bytes(), "updates.yaml")
