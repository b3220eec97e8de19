"""The writer's expectations of an index: one suite over Elasticsearch and over RefusingIndex, so that the double is true."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from strandline.core.errors import Divergence
from strandline.results import elasticsearch_writer
from strandline.results.bulk_answer import BulkItem, read_bulk_answer
from strandline.results.document import Document, DocumentShape
from strandline.results.elasticsearch_client import request
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from tests.support.made_indices import writer_with_indices
from tests.support.refusing_index import RefusingIndex
from tests.support.stage_batches import stage_batch

FIELDS = (("device", "string"), ("n", "long"), ("load", "double"))
ROWS = [(f"t-{number}", number, number / 7) for number in range(250)]


@pytest.fixture(params=["elasticsearch", "refusing_index"])
def writer(request: pytest.FixtureRequest) -> Iterator[ElasticsearchWriter]:
    emit_name = f"contract-{uuid.uuid4().hex}"
    shape = DocumentShape(emit_name, "job", "stage", 1, FIELDS[:1], FIELDS[1:])
    if request.param == "elasticsearch":
        url = request.getfixturevalue("elasticsearch")
        writer = writer_with_indices(url, shape, documents_max=100)
        writer.prepare(None)
        yield writer
        remove(url, emit_name)
    else:
        with RefusingIndex() as double:
            yield ElasticsearchWriter(double.url, shape, documents_max=100)


def remove(url: str, emit_name: str) -> None:
    request(url, "DELETE", f"/{emit_name}-2024.05", timeout_s=30, parameters={"ignore_unavailable": "true"})
    request(url, "DELETE", f"/_index_template/strandline-{emit_name}", timeout_s=30)


@pytest.mark.guarantee("G9")
def test_twice_is_once(writer: ElasticsearchWriter) -> None:
    first = writer.write_batches([stage_batch(FIELDS, ROWS[:120]), stage_batch(FIELDS, ROWS[120:])], 1, 1)
    assert (first.created, first.already, first.refused) == (250, 0, [])
    second = writer.write_batches([stage_batch(FIELDS, ROWS)], epoch=2, emission=9)
    assert (second.created, second.already, second.refused) == (0, 250, [])


def test_the_items_of_an_answer_are_read_only_when_not_all_was_created(
    writer: ElasticsearchWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def count(answer: Any, documents: Sequence[Document]) -> list[BulkItem]:
        read.append(len(documents))
        return read_bulk_answer(answer, documents)

    monkeypatch.setattr(elasticsearch_writer, "read_bulk_answer", count)
    writer.write_batches([stage_batch(FIELDS, ROWS[:120])], 1, 1)
    assert read == []
    assert writer.write_batches([stage_batch(FIELDS, ROWS[119:])], 1, 1).already == 1
    assert read == [100]


def test_what_an_interrupted_attempt_left_out_is_added(writer: ElasticsearchWriter) -> None:
    writer.write_batches([stage_batch(FIELDS, ROWS[::2])], 1, 1)
    report = writer.write_batches([stage_batch(FIELDS, ROWS)], 2, 1)
    assert (report.created, report.already, report.rows) == (125, 125, 250)


def test_a_row_given_twice_in_one_bulk_is_one_document(writer: ElasticsearchWriter) -> None:
    report = writer.write_batches([stage_batch(FIELDS, [ROWS[0], ROWS[0]])], 1, 1)
    assert (report.created, report.already) == (1, 1)


def test_the_last_bit_of_a_double_counts(writer: ElasticsearchWriter) -> None:
    writer.write_batches([stage_batch(FIELDS, [("t", 1, 0.1 + 0.2)])], 1, 1)
    assert writer.write_batches([stage_batch(FIELDS, [("t", 1, 0.1 + 0.2)])], 2, 1).already == 1
    with pytest.raises(Divergence, match=r"load is 0.30000000000000004 in the index, this run computed 0\.3\. "):
        writer.write_batches([stage_batch(FIELDS, [("t", 1, 0.3)])], 2, 1)


@pytest.mark.guarantee("G9")
def test_another_value_under_the_same_id_is_an_alarm_and_changes_nothing(writer: ElasticsearchWriter) -> None:
    writer.write_batches([stage_batch(FIELDS, [("t", 1, 0.5)])], 1, 1)
    other = [stage_batch(FIELDS, [("t", 2, 0.5)])]
    for _ in range(2):
        with pytest.raises(Divergence, match=r"n is 1 in the index, this run computed 2.*'epoch': 1") as raised:
            writer.write_batches(other, 2, 1)
        assert f"{writer.shape.emit_name}-2024.05" in str(raised.value)
    assert writer.write_batches([stage_batch(FIELDS, [("t", 1, 0.5)])], 3, 1).already == 1


def test_the_version_of_the_pipeline_does_not_change_an_id(writer: ElasticsearchWriter) -> None:
    writer.write_batches([stage_batch(FIELDS, ROWS)], 1, 1)
    upgraded = replace(writer, shape=replace(writer.shape, version=2))
    assert upgraded.write_batches([stage_batch(FIELDS, ROWS)], 2, 1).already == 250


def test_nothing_to_write_sends_nothing(writer: ElasticsearchWriter) -> None:
    nowhere = replace(writer, url="http://127.0.0.1:9", deadline_s=0.1)
    assert nowhere.write_batches([stage_batch(FIELDS, [])], 1, 1).rows == 0
