"""Our reading of Elasticsearch: templates, strict mappings, what it refuses and why, and what it only puts off."""

from __future__ import annotations

import math
import pickle
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.errors import Conflict, Divergence, IndexMisconfigured, IndexUnavailable
from strandline.results import mapping as mapping_module
from strandline.results.bulk import Bulk
from strandline.results.document import Document, DocumentShape, document_id
from strandline.results.elasticsearch_client import request
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.index_settings import IndexSettings
from strandline.results.mapping import ensure_index_template
from strandline.results.names import METADATA_NAMES
from strandline.results.writer import WriteReport
from tests.support.made_indices import MadeInMemory, writer_with_indices
from tests.support.stage_batches import MAY_1_NOON_MS, MINUTE_MS, stage_batch

BY = (("device", "string"), ("site", "integer"), ("since", "timestamp"), ("on", "boolean"))
AGGREGATES = (("n", "long"), ("load", "double"), ("cost", "decimal(10,2)"))
ROW = ("t-17", 4, 1_714_564_800_000_001, True, 2**53 + 1, 0.1, Decimal("12345678.90"))
DAY_MS = 86_400_000


@dataclass
class Emit:
    """One emit of a test, under a name of its own."""

    url: str
    name: str
    made: MadeInMemory = field(default_factory=MadeInMemory)

    def shape(
        self, by: tuple[tuple[str, str], ...] = BY, aggregates: tuple[tuple[str, str], ...] = AGGREGATES
    ) -> DocumentShape:
        return DocumentShape(self.name, "job", "stage", 1, by, aggregates)

    def ensure(self, shape: DocumentShape) -> ElasticsearchWriter:
        writer = writer_with_indices(self.url, shape, self.made, deadline_s=20)
        writer.prepare(None)
        return writer

    def begun(self) -> tuple[ElasticsearchWriter, pa.RecordBatch, pa.RecordBatch, str]:
        """A writer that has written a batch with one result, that batch, another like it, and the index of both."""
        shape = self.shape(BY[:1], AGGREGATES[:1])
        writer = self.ensure(shape)
        batch, later = (stage_batch(shape.fields, [(name, 1)]) for name in "ab")
        writer.write_batches([batch], 1, 1)
        return writer, batch, later, f"{self.name}-2024.05"

    def call(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        return request(self.url, method, path, timeout_s=30, body=body, parameters=parameters)

    def search(self, body: Any) -> Any:
        self.call("POST", f"/{self.name}/_refresh")
        return self.call("POST", f"/{self.name}/_search", body)

    def template(self) -> Any:
        return self.call("GET", f"/_index_template/strandline-{self.name}")["index_templates"]


@pytest.fixture
def new_emit(elasticsearch: str) -> Iterator[Callable[[str], Emit]]:
    emits: list[Emit] = []

    def new(name: str) -> Emit:
        emits.append(Emit(elasticsearch, name))
        return emits[-1]

    yield new
    for emit in emits:
        held = emit.call("GET", f"/{emit.name},{emit.name}-*", ignore_unavailable="true", expand_wildcards="all")
        for index in held:
            emit.call("DELETE", f"/{index}")
        for template in emit.call("GET", "/_index_template")["index_templates"]:
            if template["name"] == f"strandline-{emit.name}":
                emit.call("DELETE", f"/_index_template/{template['name']}")


@pytest.fixture
def emit(new_emit: Callable[[str], Emit]) -> Emit:
    return new_emit(f"results-{uuid.uuid4().hex}")


@pytest.mark.guarantee("G586")
def test_a_revision_is_written_over_those_before_it_and_over_no_later_one(emit: Emit) -> None:
    shape = replace(emit.shape(BY[:1], (("n", "long"), ("revision", "long"))), is_revised=True)
    writer = emit.ensure(shape)

    def write(n: int, revision: int) -> tuple[int, int]:
        report = writer.write_batches([stage_batch(shape.fields, [("t-17", n, revision), ("t-18", 1, 0)])], 1, 1)
        return report.created, report.already

    assert write(1, 0) == (2, 0)
    assert write(1, 0) == (0, 2)
    assert write(3, 2) == (1, 1)
    assert write(3, 2) == (0, 2), "the same after a kill"
    assert write(2, 1) == (0, 2), "one that comes too late"
    with pytest.raises(Divergence):
        write(4, 2)
    hits = emit.search({"version": True, "query": {"term": {"device": "t-17"}}})["hits"]["hits"]
    assert [(one["_source"]["n"], one["_source"]["revision"], one["_version"]) for one in hits] == [(3, 2, 3)]


def test_a_document_of_every_type_is_kept_exactly_and_found_by_each_field(emit: Emit) -> None:
    shape = emit.shape()
    report = emit.ensure(shape).write_batches([stage_batch(shape.fields, [ROW])], epoch=3, emission=7)
    assert (report.created, report.refused) == (1, [])
    filters: list[dict[str, Any]] = [
        {"term": {"device": "t-17"}},
        {"term": {"site": 4}},
        {"term": {"since": "2024-05-01T12:00:00.000Z"}},
        {"term": {"on": True}},
        {"term": {"n": 2**53 + 1}},
        {"range": {"load": {"gte": 0.1, "lte": 0.1}}},
        {"range": {"cost": {"gt": 12345678.8, "lt": 12345679}}},
        {"term": {"@timestamp": MAY_1_NOON_MS + MINUTE_MS}},
        {"term": {"window.start": "2024-05-01T12:00:00Z"}},
        {"term": {"strandline.job": "job"}},
        {"term": {"strandline.emission": 7}},
    ]
    sums = {"cost": {"sum": {"field": "cost"}}}
    found = emit.search({"query": {"bool": {"filter": filters}}, "aggs": sums})
    (hit,) = found["hits"]["hits"]
    assert hit["_index"] == f"{emit.name}-2024.05"
    (document,) = shape.documents(stage_batch(shape.fields, [ROW]), 3, 7)
    assert hit["_id"] == document.id
    assert hit["_source"] == {
        "@timestamp": "2024-05-01T12:01:00.000Z",
        "window": {"start": "2024-05-01T12:00:00.000Z", "end": "2024-05-01T12:01:00.000Z"},
        "device": "t-17",
        "site": 4,
        "since": "2024-05-01T12:00:00.000001Z",
        "on": True,
        "n": 2**53 + 1,
        "load": 0.1,
        "cost": "12345678.90",
        "strandline": {"job": "job", "stage": "stage", "version": 1, "epoch": 3, "emission": 7},
    }
    assert found["aggregations"]["cost"]["value"] == 12345678.90


@pytest.mark.parametrize("name", sorted(METADATA_NAMES))
def test_elasticsearch_keeps_the_names_that_we_refuse_and_leaves_others(emit: Emit, name: str) -> None:
    def mapping(field: str) -> dict[str, Any]:
        return {"dynamic": "strict", "properties": {field: {"type": "keyword"}}}

    ensure_index_template(emit.url, emit.name, mapping("_" + name))
    with pytest.raises(Conflict, match="answered 400"):
        ensure_index_template(emit.url, emit.name, mapping(name))


def test_nulls_are_kept_and_a_repeat_is_the_same(emit: Emit) -> None:
    shape = emit.shape()
    writer = emit.ensure(shape)
    batch = stage_batch(shape.fields, [(None,) * 7])
    assert writer.write_batches([batch], 1, 1).created == 1
    assert writer.write_batches([batch], 2, 1).already == 1


def test_windows_lie_in_the_month_of_their_end_and_the_alias_spans_them(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    starts = [MAY_1_NOON_MS + month * 31 * DAY_MS for month in range(3)]
    batch = stage_batch(shape.fields, [("a", 1), ("a", 2), ("a", 3)], starts_ms=starts)
    emit.ensure(shape).write_batches([batch], 1, 1)
    hits = emit.search({"sort": ["@timestamp"]})["hits"]["hits"]
    months = ["2024.05", "2024.06", "2024.07"]
    assert [(hit["_index"], hit["_source"]["n"]) for hit in hits] == [
        (f"{emit.name}-{month}", n) for month, n in zip(months, (1, 2, 3), strict=True)
    ]
    assert hits[0]["_id"] == document_id("job", "stage", starts[0], starts[0] + MINUTE_MS, ("a",))


def test_the_writer_that_travelled_to_another_process_writes_the_same(emit: Emit) -> None:
    shape = emit.shape()
    writer = emit.ensure(shape)
    writer.write_batches([stage_batch(shape.fields, [ROW])], 1, 1)
    travelled = pickle.loads(pickle.dumps(writer))
    assert travelled.write_batches([stage_batch(shape.fields, [ROW])], 1, 1).already == 1


def test_what_the_index_cannot_take_is_refused_with_its_reason_and_its_neighbours_are_taken(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:2])
    writer = emit.ensure(shape)
    rows = [("a", 1, 0.5), ("x" * 32_767, 2, 0.5), ("b", 3, math.nan), ("y" * 32_766, 4, 0.5)]
    good = list(shape.documents(stage_batch(shape.fields, rows), 1, 1))
    index = f"{emit.name}-2024.05"
    foreign = [
        Document("unknown-field", index, b'{"@timestamp":0,"surprise":1}'),
        Document("wrong-type", index, b'{"n":"many"}'),
        Document("not-whole", index, b'{"n":3.7}'),
        Document("object", index, b'{"device":{"name":"a"}}'),
        Document("broken", index, b'{"n":'),
    ]
    report = writer.write_batches([stage_batch(shape.fields, rows)], 1, 1)
    writer.write([Bulk.of(foreign)], report)
    assert report.created == 2
    refused = {one.id: (one.status, one.type) for one in report.refused}
    assert refused == {
        good[1].id: (400, "document_parsing_exception"),
        good[2].id: (None, "non_finite_number"),
        "unknown-field": (400, "strict_dynamic_mapping_exception"),
        "wrong-type": (400, "document_parsing_exception"),
        "not-whole": (400, "document_parsing_exception"),
        "object": (400, "document_parsing_exception"),
        "broken": (400, "document_parsing_exception"),
    }
    reasons = {one.id: one.reason for one in report.refused}
    assert "surprise" in reasons["unknown-field"]
    assert "many" in reasons["wrong-type"]


def test_ensuring_twice_and_at_once_is_ensuring_once(emit: Emit) -> None:
    shape = emit.shape()
    with ThreadPoolExecutor(8) as threads:
        writers = list(threads.map(emit.ensure, [shape] * 16))
    first = emit.template()
    emit.ensure(shape)
    assert emit.template() == first
    assert first[0]["index_template"]["template"]["mappings"]["dynamic"] == "strict"
    assert writers[0].write_batches([stage_batch(shape.fields, [ROW])], 1, 1).created == 1


@pytest.mark.parametrize("settings", [IndexSettings(), IndexSettings(2, 3, 7_000)])
def test_a_template_is_put_again_only_if_it_has_changed(
    emit: Emit, settings: IndexSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, put = emit.shape(), list[str]()
    put_it = mapping_module._put
    monkeypatch.setattr(mapping_module, "_put", lambda url, path, *more: put.append(path) or put_it(url, path, *more))
    for wanted in (settings, settings, IndexSettings(shards=4), IndexSettings(shards=4)):
        writer_with_indices(emit.url, shape, emit.made, wanted).prepare(None)
    assert put == [f"/_index_template/strandline-{emit.name}"] * 2
    changed = emit.template()[0]["index_template"]
    changed["template"]["mappings"]["dynamic"] = "false"
    emit.call("PUT", f"/_index_template/strandline-{emit.name}", changed)
    writer_with_indices(emit.url, shape, emit.made, IndexSettings(shards=4)).prepare(None)
    assert len(put) == 3
    assert emit.template()[0]["index_template"]["template"]["mappings"]["dynamic"] == "strict"


def test_a_name_that_begins_another_does_not_take_its_indices(new_emit: Callable[[str], Emit], emit: Emit) -> None:
    """`turbine-*` matches `turbine-minute-2024.05` too."""
    longer = new_emit(f"{emit.name}-minute")
    for first, second in ((emit, longer), (longer, emit)):
        first.ensure(first.shape(BY[:1], (("total", "long"),)))
        second.ensure(second.shape(BY[:1], (("peak", "double"),)))
    short = emit.ensure(emit.shape(BY[:1], (("total", "long"),)))
    long = longer.ensure(longer.shape(BY[:1], (("peak", "double"),)))
    assert short.write_batches([stage_batch(short.shape.fields, [("a", 1)])], 1, 1).created == 1
    assert long.write_batches([stage_batch(long.shape.fields, [("a", 1.5)])], 1, 1).created == 1
    assert len(emit.search({})["hits"]["hits"]) == 1
    assert len(longer.search({})["hits"]["hits"]) == 1


def test_a_new_aggregate_is_added_to_the_indices_that_exist(emit: Emit) -> None:
    old = emit.shape(BY[:1], AGGREGATES[:1])
    emit.ensure(old).write_batches([stage_batch(old.fields, [("a", 1)])], 1, 1)
    new = emit.shape(BY[:1], AGGREGATES[:2])
    report = emit.ensure(new).write_batches([stage_batch(new.fields, [("b", 1, 0.5)])], 2, 2)
    assert (report.created, report.refused) == (1, [])
    assert emit.search({"query": {"term": {"load": 0.5}}})["hits"]["total"]["value"] == 1


def test_a_field_of_another_type_conflicts_only_when_an_index_holds_it(emit: Emit) -> None:
    longs = emit.shape(BY[:1], (("load", "long"),))
    doubles = emit.shape(BY[:1], (("load", "double"),))
    emit.ensure(longs)
    emit.ensure(doubles)
    assert emit.template()[0]["index_template"]["template"]["mappings"]["properties"]["load"]["type"] == "double"
    writer = emit.ensure(longs)
    writer.write_batches([stage_batch(longs.fields, [("a", 1)])], 1, 1)
    before = emit.template()
    with pytest.raises(
        Conflict, match=f"index {emit.name}-2024.05 has load as long, but in this pipeline it is double"
    ):
        emit.ensure(doubles)
    assert emit.template() == before
    assert writer.write_batches([stage_batch(longs.fields, [("b", 1)])], 1, 1).created == 1


def test_a_name_that_an_index_has_cannot_be_an_alias(emit: Emit) -> None:
    emit.call("PUT", f"/{emit.name}")
    with pytest.raises(Conflict, match="so it cannot be the alias"):
        emit.ensure(emit.shape())


def test_settings_of_the_index_come_from_the_template(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    batch = stage_batch(shape.fields, [("a", 1)])
    wanted = IndexSettings(shards=2, replicas="0-2", refresh_interval_ms=7_000)
    writer_with_indices(emit.url, shape, emit.made, wanted).write_batches([batch], 1, 1)
    index = f"{emit.name}-2024.05"
    settings = emit.call("GET", f"/{index}/_settings")[index]["settings"]["index"]
    assert (settings["number_of_shards"], settings["auto_expand_replicas"]) == ("2", "0-2")
    assert settings["refresh_interval"] == "7000ms"
    assert emit.call("GET", f"/{index}/_alias")[index]["aliases"].keys() == {emit.name, f"{index}.write"}
    fixed = IndexSettings(replicas=3)
    june = stage_batch(shape.fields, [("a", 1)], starts_ms=[MAY_1_NOON_MS + 31 * DAY_MS])
    writer_with_indices(emit.url, shape, emit.made, fixed).write_batches([june], 2, 2)
    settings = emit.call("GET", f"/{emit.name}-2024.06/_settings")[f"{emit.name}-2024.06"]["settings"]["index"]
    assert (settings["number_of_shards"], settings["number_of_replicas"]) == ("1", "3")
    template = emit.template()[0]["index_template"]["template"]["settings"]["index"]
    assert template["number_of_replicas"] == "3", "an upgrade counts for what is made from then on"


def test_an_index_takes_a_replica_as_soon_as_there_is_a_node_for_it(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    emit.ensure(shape).write_batches([stage_batch(shape.fields, [("a", 1)])], 1, 1)
    index = f"{emit.name}-2024.05"
    settings = emit.call("GET", f"/{index}/_settings")[index]["settings"]["index"]
    assert (settings["auto_expand_replicas"], settings["number_of_replicas"]) == ("0-1", "0")


@pytest.mark.guarantee("G104")
@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ({"index.blocks.write": True}, r"cluster_block_exception.*; lift the block: PUT /{index}/_settings"),
        ({"index.blocks.read_only": True}, r"cluster_block_exception.*; lift the block: PUT /{index}/_settings"),
        (
            {"index.default_pipeline": "gone"},
            r"pipeline with id \[gone\] does not exist; create the ingest pipeline, or remove it",
        ),
        (
            {"index.final_pipeline": "gone"},
            r"pipeline with id \[gone\] does not exist; create the ingest pipeline, or remove it",
        ),
    ],
    ids=str,
)
def test_what_an_operator_has_set_stops_the_emission_and_refuses_nothing(
    emit: Emit, setting: dict[str, Any], remedy: str
) -> None:
    writer, _, later, index = emit.begun()
    emit.call("PUT", f"/{index}/_settings", setting)
    with pytest.raises(IndexMisconfigured, match=remedy.format(index=index)):
        writer.write_batches([later], 1, 2)
    emit.call("PUT", f"/{index}/_settings", dict.fromkeys(setting))
    assert writer.write_batches([later], 2, 2).created == 1


@pytest.mark.guarantee("G104")
def test_a_closed_index_stops_the_emission_and_refuses_nothing(emit: Emit) -> None:
    writer, batch, later, index = emit.begun()
    emit.call("POST", f"/{index}/_close")
    for epoch in (1, 2):
        with pytest.raises(IndexMisconfigured, match=f"index_closed_exception.*; open it: POST /{index}/_open"):
            writer.write_batches([later], epoch, 2)
    emit.call("POST", f"/{index}/_open", wait_for_active_shards="1")
    report = writer.write_batches([batch, later], 3, 2)
    assert (report.created, report.already) == (1, 1)


def test_a_full_disk_puts_results_off_until_it_has_room(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    writer = emit.ensure(shape)
    index = f"{emit.name}-2024.05"
    writer.write_batches([stage_batch(shape.fields, [("a", 1)])], 1, 1)
    later = stage_batch(shape.fields, [("b", 1)])

    def refusal() -> str:
        """Empty when Elasticsearch has just taken its block back, as it does each 30 s while the disk has room."""
        nonlocal later
        # What it sets above its flood stage.
        emit.call("PUT", f"/{index}/_settings", {"index.blocks.read_only_allow_delete": True})
        try:
            replace(writer, deadline_s=0.5).write_batches([later], 1, 2)
        except IndexUnavailable as error:
            return str(error)
        later = stage_batch(shape.fields, [("c", 1)])
        return ""

    assert re.search(r"not accepted 1 of 1 documents.*429 cluster_block_exception", refusal() or refusal())
    emit.call("PUT", f"/{index}/_settings", {"index.blocks.read_only_allow_delete": None})
    assert writer.write_batches([later], 1, 2).created == 1


@pytest.mark.guarantee("G104")
def test_no_room_for_another_shard_stops_the_emission(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    writer = emit.ensure(shape)
    # The cluster may hold shards of other tests, or none: with this one the limit is reached in either case.
    emit.call("PUT", f"/{emit.name}-other", {"settings": {"number_of_replicas": 0}})
    emit.call("PUT", "/_cluster/settings", {"persistent": {"cluster.max_shards_per_node": 1}})
    try:
        with pytest.raises(IndexMisconfigured, match=r"validation_exception.*raise that setting"):
            writer.write_batches([stage_batch(shape.fields, [("a", 1)])], 1, 1)
    finally:
        emit.call("PUT", "/_cluster/settings", {"persistent": {"cluster.max_shards_per_node": None}})
    assert writer.write_batches([stage_batch(shape.fields, [("a", 1)])], 1, 1).created == 1


@pytest.mark.guarantee(
    "G105",
    "The index of a month has the emission's mapping, whatever happened to its template. An index that was deleted "
    "with its results never returns empty.",
    promise="a-failing-store-costs-no-result",
)
def test_a_template_that_was_deleted_is_there_again_before_a_new_month(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    writer = emit.ensure(shape)
    writer.write_batches([stage_batch(shape.fields, [("a", 1)])], 1, 1)
    emit.call("DELETE", f"/_index_template/strandline-{emit.name}")
    june = stage_batch(shape.fields, [("a", 1)], starts_ms=[MAY_1_NOON_MS + 31 * DAY_MS])
    writer.write_batches([june], 1, 2)
    assert len(emit.template()) == 1
    held = emit.call("GET", f"/{emit.name}-2024.06")[f"{emit.name}-2024.06"]
    assert held["mappings"]["dynamic"] == "strict"
    assert held["aliases"].keys() == {emit.name, f"{emit.name}-2024.06.write"}


@pytest.mark.guarantee("G105")
def test_another_template_that_wins_changes_no_mapping(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    writer = emit.ensure(shape)
    other = {"index_patterns": [f"{emit.name}-*"], "priority": 100_000, "template": {"mappings": {"dynamic": True}}}
    emit.call("PUT", "/_index_template/other", other)
    try:
        writer.write_batches([stage_batch(shape.fields, [("a", 1)])], 1, 1)
    finally:
        emit.call("DELETE", "/_index_template/other")
    assert emit.call("GET", f"/{emit.name}-2024.05")[f"{emit.name}-2024.05"]["mappings"]["dynamic"] == "strict"


@pytest.mark.guarantee("G105")
def test_an_index_that_was_deleted_with_its_results_does_not_come_back_empty(emit: Emit) -> None:
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    writer = emit.ensure(shape)
    batch = stage_batch(shape.fields, [("a", 1)])
    index = f"{emit.name}-2024.05"
    writer.write_batches([batch], 1, 1)
    emit.call("DELETE", f"/{index}")
    emit.call("DELETE", f"/_index_template/strandline-{emit.name}")
    for epoch in (1, 2):
        with pytest.raises(
            IndexMisconfigured, match=f"index {index} no longer exists, with the results that job job emitted"
        ):
            writer.write_batches([batch], epoch, 2)
    with pytest.raises(IndexMisconfigured, match=f"index {index} no longer exists"):
        writer.prepare(None)
    assert emit.call("GET", f"/{emit.name}-*") == {}
    emit.call("PUT", f"/{index}")  # an operator gives the results up
    writer.prepare(None)
    assert writer.write_batches([batch], 3, 2).created == 1


def test_aliases_that_were_deleted_are_there_again(emit: Emit) -> None:
    writer, _, later, index = emit.begun()
    emit.call("DELETE", f"/{index}/_alias/*")
    assert writer.write_batches([later], 1, 2).created == 1
    assert emit.call("GET", f"/{index}/_alias")[index]["aliases"].keys() == {emit.name, f"{index}.write"}


def test_a_bulk_that_is_larger_than_the_server_takes_goes_in_halves_down_to_the_document(emit: Emit) -> None:
    """The server takes 100 MB."""
    shape = emit.shape(BY[:1], AGGREGATES[:1])
    writer = emit.ensure(shape)
    writer.write_batches([stage_batch(shape.fields, [("a", 1)])], 1, 1)
    large = b'{"device":"%b"}' % (b"x" * 105_000_000)
    sources = [b'{"device":"b"}', large, b'{"device":"c"}']
    report = WriteReport()
    writer.write([Bulk.of([Document(f"id{n}", f"{emit.name}-2024.05", one) for n, one in enumerate(sources)])], report)
    assert report.created == 2
    assert [(one.id, one.status) for one in report.refused] == [("id1", 413)]


FOREIGN = {"mappings": {"properties": {"device": {"type": "keyword"}}}}


@pytest.mark.guarantee(
    "G180",
    "An index, alias, or index template of another owner that has the name of one of ours is never changed, written "
    "to, or deleted. An error names it and the remedy.",
    promise="a-failing-store-costs-no-result",
)
@pytest.mark.parametrize("kind", ["index", "alias", "write alias", "template"])
def test_what_somebody_else_made_under_our_names_is_neither_changed_nor_written_to(emit: Emit, kind: str) -> None:
    index, stranger = f"{emit.name}-2024.05", f"{emit.name}-of-a-stranger"
    remedy = "Emit under another name, or remove it there"
    match kind:
        case "index":
            stranger, what, remedy = index, f"index {index}", "Emit under another name, or rename or delete it"
            emit.call("PUT", f"/{index}", FOREIGN)
        case "alias":
            what = f"alias {emit.name} of index {stranger}"
            emit.call("PUT", f"/{stranger}", {**FOREIGN, "aliases": {emit.name: {}}})
        case "write alias":
            what = f"alias {index}.write of index {stranger}"
            emit.call("PUT", f"/{stranger}", {**FOREIGN, "aliases": {f"{index}.write": {"is_write_index": True}}})
        case _:
            name = f"strandline-{emit.name}"
            what, remedy = f"index template {name}", "Emit under another name, or rename or delete it"
            emit.call("PUT", f"/{stranger}", FOREIGN)
            emit.call("PUT", f"/_index_template/{name}", {"index_patterns": [f"{emit.name}-x*"], "template": FOREIGN})
    before = emit.call("GET", f"/{stranger}"), emit.call("GET", "/_index_template"), emit.call("GET", "/_alias")
    with pytest.raises(Conflict, match=f"{what} is not Strandline's.*nothing was changed. {remedy}"):
        emit.ensure(emit.shape())
    assert before == (
        emit.call("GET", f"/{stranger}"),
        emit.call("GET", "/_index_template"),
        emit.call("GET", "/_alias"),
    )


def test_an_operators_index_in_the_alias_stays_as_it_is_and_stops_nothing(emit: Emit) -> None:
    _, _, _, index = emit.begun()
    archive = f"archive-{emit.name}"
    emit.call("PUT", f"/{archive}", {**FOREIGN, "aliases": {emit.name: {}}})
    emit.call("PUT", f"/{index}/_mapping", {"_meta": {"managed_by": "strandline", "owner": "ops"}})
    try:
        wider = emit.shape(BY[:1], AGGREGATES[:2])
        writer = emit.ensure(wider)
        assert writer.write_batches([stage_batch(wider.fields, [("c", 1, 2)])], 1, 2).created == 1
        assert emit.call("GET", f"/{index}")[index]["mappings"]["_meta"] == {"managed_by": "strandline", "owner": "ops"}
        assert "_meta" not in emit.call("GET", f"/{archive}")[archive]["mappings"]
    finally:
        emit.call("DELETE", f"/{archive}")


def test_all_that_is_made_says_by_whom(emit: Emit) -> None:
    _, _, _, index = emit.begun()
    assert emit.call("GET", f"/{index}")[index]["mappings"]["_meta"] == {"managed_by": "strandline"}
    assert emit.template()[0]["index_template"]["_meta"]["managed_by"] == "strandline"
