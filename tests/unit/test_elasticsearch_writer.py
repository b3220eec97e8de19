"""The writer against an index that refuses, fails, and loses requests and answers: every document comes to one end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from strandline.core.errors import Divergence, IndexMisconfigured, IndexUnavailable, PermanentError
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from tests.support.refusing_index import Fault, RefusingIndex
from tests.support.stage_batches import stage_batch
from tests.support.waiting import stretched

SHAPE = DocumentShape("emit", "job", "stage", 1, (("device", "string"),), (("n", "long"), ("load", "double")))
BATCH = stage_batch(SHAPE.fields, [(f"t-{number}", number, 0.5) for number in range(10)])
IDS = [document.id for document in SHAPE.documents(BATCH, 1, 1)]


@pytest.fixture
def index() -> Iterator[RefusingIndex]:
    with RefusingIndex() as index:
        yield index


@pytest.fixture
def writer(index: RefusingIndex) -> ElasticsearchWriter:
    return ElasticsearchWriter(index.url, SHAPE, deadline_s=10, wait_first_s=0.001, wait_max_s=0.01)


def test_each_item_of_a_mixed_answer_comes_to_its_own_end(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    writer.write_batches([BATCH.slice(0, 1)], 1, 1)
    index.item_errors |= {
        IDS[1]: [(429, "es_rejected_execution_exception")] * 3,
        IDS[2]: [(503, "unavailable_shards_exception")],
        IDS[3]: [(400, "document_parsing_exception")],
        IDS[4]: [(429, "cluster_block_exception")],
        IDS[5]: [(500, "exception"), (400, "strict_dynamic_mapping_exception")],
    }
    index.sent.clear()
    report = writer.write_batches([BATCH], 2, 1)
    assert (report.created, report.already) == (7, 1)
    assert [(one.id, one.status, one.type) for one in report.refused] == [
        (IDS[3], 400, "document_parsing_exception"),
        (IDS[5], 400, "strict_dynamic_mapping_exception"),
    ]
    assert json.loads(report.refused[0].source)["device"] == "t-3"
    assert index.sent == [IDS, [IDS[1], IDS[2], IDS[4], IDS[5]], [IDS[1]], [IDS[1]]], "only what may succeed goes again"
    assert len(index.documents) == 8


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.OVERLOADED, Fault.UNAVAILABLE])
def test_a_request_that_was_not_carried_out_is_repeated(
    index: RefusingIndex, writer: ElasticsearchWriter, fault: Fault
) -> None:
    index.faults = [fault, fault]
    report = writer.write_batches([BATCH], 1, 1)
    assert (report.created, report.already, len(index.sent)) == (10, 0, 3)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.CUT_ANSWER, Fault.OMIT_ITEM])
def test_an_answer_that_is_lost_or_incomplete_is_unknown_and_the_repeat_finds_what_was_done(
    index: RefusingIndex, writer: ElasticsearchWriter, fault: Fault
) -> None:
    index.faults = [fault]
    report = writer.write_batches([BATCH], 1, 1)
    assert (report.created, report.already, len(index.documents)) == (0, 10, 10)


def test_a_comparison_that_fails_is_repeated_without_counting_the_created_again(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    writer.write_batches([BATCH.slice(0, 4)], 1, 1)
    index.sent.clear()
    index.read_statuses = [503, 429]
    report = writer.write_batches([BATCH], 1, 1)
    assert (report.created, report.already) == (6, 4)
    assert len(index.sent) == 1, "only the reading is repeated"


def test_an_id_that_was_taken_and_is_gone_is_created(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    index.item_errors[IDS[0]] = [(409, "version_conflict_engine_exception")]
    report = writer.write_batches([BATCH], 1, 1)
    assert (report.created, report.already, len(index.documents)) == (10, 0, 10)


def test_divergence_is_told_also_when_the_answer_was_lost(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    writer.write_batches([BATCH], 1, 1)
    index.documents["emit-2024.05", IDS[2]]["load"] = 0.75
    index.faults = [Fault.LOSE_ANSWER]
    with pytest.raises(
        Divergence, match=rf"1 results differ.*{IDS[2]}.*load is 0.75 in the index, this run computed 0.5"
    ):
        writer.write_batches([BATCH], 2, 1)


def test_giving_up_names_what_is_open_and_keeps_to_the_deadline(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    index.item_errors[IDS[7]] = [(429, "es_rejected_execution_exception")] * 100_000
    started = time.monotonic()
    with pytest.raises(IndexUnavailable, match=r"not accepted 1 of 10 documents within 0.5 s.*429 es_rejected"):
        replace(writer, deadline_s=0.5).write_batches([BATCH], 1, 1)
    assert time.monotonic() - started < stretched(5)
    assert len(index.documents) == 9, "the others are in"
    index.item_errors.clear()
    assert writer.write_batches([BATCH], 2, 1).already == 9


def test_an_absent_server_is_unavailable(index: RefusingIndex) -> None:
    away = ElasticsearchWriter("http://127.0.0.1:9", SHAPE, deadline_s=0.2, wait_first_s=0.01)
    with pytest.raises(IndexUnavailable, match="check that Elasticsearch runs"):
        away.write_batches([BATCH], 1, 1)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fault.FORBIDDEN, "answered 403"),
        (Fault.STRANGER, "is not Elasticsearch"),
        (Fault.REDIRECT, "redirects it"),
    ],
)
def test_what_repeating_cannot_help_stops_at_once(
    index: RefusingIndex, writer: ElasticsearchWriter, fault: Fault, sentence: str
) -> None:
    index.faults = [fault]
    writer = replace(writer, url=index.url + "/")  # a client of its own, which has not yet met the server
    with pytest.raises(PermanentError, match=sentence):
        writer.write_batches([BATCH], 1, 1)
    assert len(index.sent) == 1


def test_bulks_are_bounded_by_count_and_by_bytes(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    replace(writer, documents_max=4).write_batches([BATCH], 1, 1)
    assert [len(ids) for ids in index.sent] == [4, 4, 2]
    index.sent.clear()
    replace(writer, bytes_max=1).write_batches([BATCH], 1, 1)
    assert [len(ids) for ids in index.sent] == [1] * 10, "a document larger than the bound goes alone"


def test_small_batches_go_in_one_bulk_and_large_ones_in_several(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    writer.write_batches([BATCH.slice(0, 3), BATCH.slice(3, 0), BATCH.slice(3)], 1, 1)
    replace(writer, documents_max=4).write_batches([BATCH.slice(0, 1), BATCH.slice(1, 5), BATCH.slice(6)], 1, 1)
    assert index.sent == [IDS, IDS[:1], IDS[1:5], IDS[5:6], IDS[6:]]


def test_a_bulk_too_large_for_the_server_goes_in_halves(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    index.bulk_bytes_max = 1_000
    report = writer.write_batches([BATCH], 1, 1)
    assert (report.created, len(index.documents)) == (10, 10)


def test_a_document_too_large_for_the_server_is_refused(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    index.bulk_bytes_max = 1_000
    large = stage_batch(SHAPE.fields, [("t" * 1_000, 1, 0.5), ("t-1", 1, 0.5)])
    report = writer.write_batches([large], 1, 1)
    assert report.created == 1
    assert [(one.status, one.type) for one in report.refused] == [(413, "too_large")]


def test_rows_refused_before_the_write_are_in_the_report(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    batch = stage_batch(SHAPE.fields, [("a", 1, float("nan")), ("b", 1, 0.5)])
    report = writer.write_batches([batch], 1, 1)
    assert (report.created, report.rows, report.refused[0].type) == (1, 2, "non_finite_number")


def test_what_speaks_of_the_store_stops_the_write_and_makes_no_dead_letter(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    index.item_errors |= {
        IDS[1]: [(400, "document_parsing_exception")],
        IDS[2]: [(400, "index_closed_exception")],
        IDS[3]: [(400, "an_answer_of_a_later_release")],
    }
    with pytest.raises(IndexMisconfigured, match=r"POST /emit-2024.05/_open\. No result was lost"):
        writer.write_batches([BATCH], 1, 1)
    assert len(index.sent) == 1, "nothing is repeated in vain"


def test_a_request_that_is_refused_names_the_remedy(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    index.faults = [Fault.FORBIDDEN]
    with pytest.raises(IndexMisconfigured, match=r"answered 403 told_to_fail.*; grant the user.*the rights create_doc"):
        writer.write_batches([BATCH], 1, 1)
    writer.write_batches([BATCH], 1, 1)
    index.read_statuses = [401]
    with pytest.raises(IndexMisconfigured, match="answered 401"):
        writer.write_batches([BATCH], 1, 1)


REVISED = replace(SHAPE, aggregates=(("load", "double"), ("revision", "long")), is_revised=True)


def revised(load: float, revision: int) -> pa.RecordBatch:
    return stage_batch(REVISED.fields, [("t-1", load, revision)])


@pytest.mark.guarantee("G586")
def test_a_revision_takes_the_place_of_those_before_it_and_of_no_later_one(index: RefusingIndex) -> None:
    writer = ElasticsearchWriter(index.url, REVISED, deadline_s=10, wait_first_s=0.001, wait_max_s=0.01)

    def held() -> list[tuple[float, int]]:
        return [(one["load"], one["revision"]) for one in index.documents.values()]

    assert writer.write_batches([revised(0.5, 0)], 1, 1).created == 1
    index.faults = [Fault.LOSE_ANSWER]
    report = writer.write_batches([revised(0.75, 2)], 1, 2)
    assert (report.created, report.already, held()) == (0, 1, [(0.75, 2)]), "the repeat finds what was done"
    assert writer.write_batches([revised(0.75, 2)], 2, 2).already == 1, "after a kill the same again"
    index.item_errors[next(iter(index.documents))[1]] = [(429, "es_rejected_execution_exception")]
    assert writer.write_batches([revised(1.0, 3)], 2, 3).created == 1
    assert held() == [(1.0, 3)]
    assert writer.write_batches([revised(0.75, 2)], 1, 2).already == 1, "a write that comes too late"
    assert held() == [(1.0, 3)]
    with pytest.raises(Divergence, match="load"):
        writer.write_batches([revised(2.0, 3)], 3, 3)
