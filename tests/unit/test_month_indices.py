"""The indices of a month are made once: before a run's first document for each, and never again when one is gone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import Conflict, IndexMisconfigured, IndexUnavailable
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.processing.emission.made_indices import elasticsearch_writers
from strandline.processing.pipelines.event_time import WindowShape
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.index_settings import IndexSettings
from strandline.results.mapping import build_mapping
from strandline.results.month_indices import MonthIndices
from tests.support.made_indices import MadeInMemory, writer_with_indices
from tests.support.refusing_index import RefusingIndex
from tests.support.stage_batches import MAY_1_NOON_MS, stage_batch

SHAPE = DocumentShape("emit", "job", "stage", 1, (("device", "string"),), (("n", "long"),))
BATCH = stage_batch(SHAPE.fields, [("a", 1)])
JUNE = stage_batch(SHAPE.fields, [("a", 1)], starts_ms=[MAY_1_NOON_MS + 31 * 86_400_000])
MAY_INDEX, JUNE_INDEX = "emit-2024.05", "emit-2024.06"
JULY_MS = 1_719_792_000_000
"""2024-07-01T00:00:00Z."""
YEAR_10000_MS = 253_402_300_800_000


@pytest.fixture
def index() -> Iterator[RefusingIndex]:
    with RefusingIndex(indices={}) as index:
        yield index


@pytest.fixture
def made() -> MadeInMemory:
    return MadeInMemory()


@pytest.fixture
def writer(index: RefusingIndex, made: MadeInMemory) -> ElasticsearchWriter:
    settings = IndexSettings(shards=3, replicas=2, lifecycle="keep")
    return writer_with_indices(index.url, SHAPE, made, settings, deadline_s=1, wait_first_s=0.001, wait_max_s=0.01)


@dataclass
class Meanwhile:
    """Does something once, after some looks."""

    looks: int
    act: Callable[[], None]

    def looked(self) -> None:
        self.looks -= 1
        if self.looks == 0:
            self.act()


class RememberedByOne(MadeInMemory):
    """Part of the memory of all that one process reads."""

    def __init__(self, all_: MadeInMemory, meanwhile: Meanwhile) -> None:
        self.held, self.meanwhile = all_.held, meanwhile

    def names(self) -> set[str]:
        names = super().names()
        self.meanwhile.looked()
        return names


class SeenByOne(RefusingIndex):
    """The index as one process sees it that looks which indices there are."""

    def __init__(self, all_: RefusingIndex, meanwhile: Meanwhile) -> None:
        super().__init__(indices=all_.indices)
        self.meanwhile = meanwhile

    def set_up(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        answer = super().set_up(method, path, body)
        if method == "GET":
            self.meanwhile.looked()
        return answer


def indices_of(index: RefusingIndex) -> dict[str, object]:
    assert index.indices is not None
    return index.indices


def test_a_new_month_has_its_index_made_as_the_emission_says(
    index: RefusingIndex, writer: ElasticsearchWriter, made: MadeInMemory
) -> None:
    writer.prepare(None)
    assert writer.write_batches([BATCH, JUNE], 1, 1).created == 2
    assert made.held == {MAY_INDEX, JUNE_INDEX} == indices_of(index).keys()
    assert indices_of(index)[MAY_INDEX] == {
        "settings": {
            "index.number_of_shards": 3,
            "index.number_of_replicas": 2,
            "index.mapping.coerce": False,
            "index.lifecycle.name": "keep",
        },
        "mappings": build_mapping(SHAPE),
        "aliases": {"emit": {}, f"{MAY_INDEX}.write": {"is_hidden": True}},
    }


def test_an_index_is_looked_at_once_in_a_run(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    writer.write_batches([BATCH], 7, 1)
    asked = len(index.asked)
    for slice_ in range(2, 5):
        writer.write_batches([BATCH], 7, slice_)
    assert len(index.asked) == asked
    writer.write_batches([BATCH], 8, 5)
    assert len(index.asked) > asked


def test_a_template_that_was_deleted_is_there_again_before_a_new_month(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    writer.prepare(None)
    writer.write_batches([BATCH], 1, 1)
    index.templates.clear()
    writer.write_batches([JUNE], 1, 2)
    assert list(index.templates) == ["/_index_template/strandline-emit"]


@pytest.mark.guarantee("G105")
def test_an_index_that_is_gone_is_not_made_again(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    """Neither in the run that wrote to it, nor in a worker that has not yet, nor at the next start."""
    writer.write_batches([BATCH], 1, 1)
    indices_of(index).clear()
    for epoch in (1, 2):
        with pytest.raises(
            IndexMisconfigured, match=rf"index {MAY_INDEX} no longer exists.*job backfill job --missing"
        ):
            writer.write_batches([BATCH], epoch, 2)
    with pytest.raises(IndexMisconfigured, match="no longer exists"):
        writer.prepare(None)
    assert indices_of(index) == {}


def test_an_index_that_is_put_back_takes_documents_again(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    writer.write_batches([BATCH], 1, 1)
    held = dict(indices_of(index))
    indices_of(index).clear()
    with pytest.raises(IndexMisconfigured):
        writer.prepare(None)
    indices_of(index).update(held)
    writer.prepare(None)
    assert writer.write_batches([BATCH], 2, 2).already == 1


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("is_start", [False, True])
def test_processes_that_begin_a_month_together_do_not_take_each_other_s_index_for_lost(
    index: RefusingIndex, made: MadeInMemory, writer: ElasticsearchWriter, looks: int, is_start: bool
) -> None:
    """Another makes the index after the first look at ledger or store, or after both."""
    other = Meanwhile(looks, lambda: MonthIndices(index.url, SHAPE, IndexSettings(), made).make_sure_of(MAY_INDEX))
    with SeenByOne(index, other) as seen:
        own = replace(writer, url=seen.url, made=RememberedByOne(made, other))
        own.prepare(None) if is_start else own.write_batches([BATCH], 1, 1)
    assert made.held == {MAY_INDEX} == indices_of(index).keys()


def test_an_index_that_was_made_and_not_remembered_is_remembered_by_who_writes_to_it(
    index: RefusingIndex, writer: ElasticsearchWriter, made: MadeInMemory
) -> None:
    """The process that created it died in between."""
    writer.write_batches([BATCH], 1, 1)
    made.held.clear()
    writer.write_batches([BATCH], 2, 2)
    assert made.held == {MAY_INDEX}
    indices_of(index).clear()
    with pytest.raises(IndexMisconfigured, match="no longer exists"):
        writer.write_batches([BATCH], 3, 3)


def test_the_newest_index_may_be_deleted_once_nothing_goes_there_any_more(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    writer.write_batches([BATCH, JUNE], 1, 1)
    del indices_of(index)[JUNE_INDEX]
    writer.prepare(JULY_MS)
    for may_come_ms in (None, JULY_MS - 1, MAY_1_NOON_MS):
        with pytest.raises(IndexMisconfigured, match=f"index {JUNE_INDEX} no longer exists"):
            writer.prepare(may_come_ms)


def test_a_job_whose_event_time_has_come_to_the_end_of_the_year_9999_starts_again(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    """The job's next window ends in the year 10000, and no index can be named after that year."""
    minutes, last_end_ms = WindowShape(60_000, 60_000), YEAR_10000_MS - 60_000
    last = stage_batch(SHAPE.fields, [("a", 1)], starts_ms=[last_end_ms - 60_000])
    writer.write_batches([last], 1, 1)
    for emitted_ms in (last_end_ms, YEAR_10000_MS, YEAR_10000_MS + 10**12):  # silence moves it on
        writer.prepare(minutes.first_end(emitted_ms))
    indices_of(index).clear()
    with pytest.raises(IndexMisconfigured, match=r"index emit-9999.12 no longer exists"):
        writer.prepare(YEAR_10000_MS)


@pytest.mark.parametrize("next_end_ms", [None, MAY_1_NOON_MS + 31 * 86_400_000])
def test_an_old_index_may_be_read_only(
    index: RefusingIndex, writer: ElasticsearchWriter, next_end_ms: int | None
) -> None:
    """The index lacks a field and its alias for writing, and only a result for it would need them."""
    mapping = build_mapping(SHAPE)
    without_fields = {"_meta": mapping["_meta"], "properties": {"strandline": mapping["properties"]["strandline"]}}
    for name in (MAY_INDEX, JUNE_INDEX):
        indices_of(index)[name] = {"mappings": without_fields, "aliases": {"emit": {}}}
    held: Any = indices_of(index)
    index.read_only.add(MAY_INDEX)
    writer.prepare(next_end_ms)
    assert held[JUNE_INDEX] == {"mappings": build_mapping(SHAPE), "aliases": {"emit": {}, f"{JUNE_INDEX}.write": {}}}
    assert f"PUT /{MAY_INDEX}/_mapping" in index.asked, "where it can be changed, its new fields can be sorted by"
    with pytest.raises(Conflict, match="cluster_block_exception"):
        writer.write_batches([BATCH], 1, 1)
    index.read_only.clear()
    assert writer.write_batches([BATCH], 1, 1).created == 1
    assert held[MAY_INDEX] == {"mappings": build_mapping(SHAPE), "aliases": {"emit": {}, f"{MAY_INDEX}.write": {}}}


def test_an_older_index_may_be_deleted(index: RefusingIndex, writer: ElasticsearchWriter) -> None:
    writer.write_batches([BATCH, JUNE], 1, 1)
    del indices_of(index)[MAY_INDEX]
    writer.prepare(None)


@pytest.mark.parametrize("of_backfill", [{"emit.shown.g2": {}}, {"emit": {"filter": {"match_all": {}}}}])
def test_an_alias_that_a_backfill_has_filtered_is_not_set_by_guess(
    index: RefusingIndex, writer: ElasticsearchWriter, of_backfill: dict[str, Any]
) -> None:
    """The mark of the index decides, or the filter of another month."""
    for name, aliases in ((MAY_INDEX, {}), (JUNE_INDEX, {"emit": {}} | of_backfill)):
        indices_of(index)[name] = {"mappings": build_mapping(SHAPE), "aliases": {f"{name}.write": {}} | aliases}
    with pytest.raises(Conflict, match=f"index {MAY_INDEX} is no longer in the alias emit"):
        writer.prepare(None)


def test_a_store_that_does_not_answer_at_the_start_is_away_not_wrong() -> None:
    with pytest.raises(IndexUnavailable, match="check that Elasticsearch runs"):
        writer_with_indices("http://127.0.0.1:9", SHAPE, deadline_s=0.1, wait_first_s=0.01).prepare(None)


def test_a_run_s_writers_remember_in_the_ledger_and_travel(index: RefusingIndex, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    settings = Settings(ledger_url=url, elasticsearch_url=index.url)
    with closing(Ledger.open(url)) as ledger:
        ledger.submit_job("job", "", {"pipeline": "job"})
        writer = elasticsearch_writers(settings, "job")(SHAPE, IndexSettings())
        writer.prepare(None)
        assert pickle.loads(pickle.dumps(writer)).write_batches([BATCH], 1, 1).created == 1
        assert ledger.result_indices("job") == {MAY_INDEX}
        indices_of(index).clear()
        with pytest.raises(IndexMisconfigured, match="no longer exists"):
            writer.prepare(None)


def test_an_index_of_somebody_else_stops_the_run_before_anything_is_changed(
    index: RefusingIndex, writer: ElasticsearchWriter
) -> None:
    stranger: Any = {"mappings": {"properties": {"device": {"type": "keyword"}}}, "aliases": {}}
    indices_of(index)[MAY_INDEX] = stranger
    with pytest.raises(Conflict, match=f"index {MAY_INDEX} is not Strandline's.*Emit under another name"):
        writer.prepare(None)
    assert [request for request in index.asked if not request.startswith("GET")] == []
    assert index.templates == {}
