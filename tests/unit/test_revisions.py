"""`late: {revise: ...}`: what a document can request, what is recorded, planned, audited and reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strandline import stream, tumbling
from strandline.core.documents import read_documents
from strandline.core.errors import Conflict, InvalidDocument
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule
from strandline.processing.audit.reconciliation import DeadLetterScope, Kind, Reconciler, Row, Side, StoreScope
from strandline.processing.backfill.plan import plan_backfill
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import earliest_event
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.upgrade import changes_between
from strandline.processing.slices.watermark import rule_after
from tests.support.ledgers import a_checkpoint, a_slice

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "examples" / "revise.yaml").read_text()
MINUTE_MS = 60_000
FURTHER = """    emit: [{elasticsearch: meter-minute}]
  - window: {name: h, tumbling: 1h, aggregate: {n: sum(n)}}
    emit: [{elasticsearch: h}]
"""


def checked(text: str = TEXT) -> CheckedPipeline:
    return read_pipeline(text.encode(), "revise.yaml")


def problem_of(*changes: tuple[str, str]) -> str:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(InvalidDocument) as caught:
        checked(text)
    return str(caught.value)


@pytest.mark.guarantee("G585")
def test_the_example_of_the_page_gives_what_the_page_shows() -> None:
    page = (ROOT / "docs" / "emissions.md").read_text().partition("## Results that late records revise")[2]
    records, shown = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[:2]
    desk = Desk(checked(), 1)
    outcomes = [*desk.feed(DeskRecords(records.encode().splitlines(), [0] * 5)), *desk.drain()]
    found = [json.loads(one.document.source) for one in outcomes if isinstance(one, DeskResult)]
    for one in found:
        del one["window"], one["strandline"]
    assert found == [json.loads(line) for line in shown.splitlines()]
    (letter,) = [one for one in outcomes if isinstance(one, LocalDeadLetter)]
    assert letter.reason == "late" and letter.message.endswith(
        "is before the time from which on late records revise results, 2026-11-01T12:14:50.000000Z"
    )
    ids = [one.document.id for one in outcomes if isinstance(one, DeskResult)]
    assert ids[0] == ids[1] and len(set(ids)) == 3


@pytest.mark.guarantee(
    "G590",
    "A document is refused with a remedy if it requests revisions where late records can't revise results. Retention, "
    "reach, and `explain` include the revision time.",
    promise="late-records-revise-one-document",
)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("{revise: 30m}", "{revise: 0s}")], "expected at least 1ms"),
        ([("{revise: 30m}", "revise")], "late"),
        ([("late: {", "guarantee: none\nlate: {")], "expected exactly_once"),
        ([("tumbling: 1m", "session: {gap: 30s}")], "a window must be tumbling, sliding, or cumulative"),
        ([("tumbling: 1m", "count: {size: 3, max: 1h}")], "a window must be tumbling, sliding, or cumulative"),
        ([("[{elasticsearch: meter-minute}]", "[{elasticsearch: m}, {stream: m}]")], "emit only to elasticsearch"),
        ([("steps:\n", "steps:\n  - emit: [{elasticsearch: raw}]\n")], "emit them in another pipeline"),
        ([("steps:\n", "steps:\n  - dedupe: {by: [meter], within: 1h}\n")], "remove one of them"),
        ([("n: count(*)", "Revision: count(*)")], "choose another name"),
        ([("    emit:", "  - where: n > 1\n  - emit:")], "write 'emit' in the step of the window"),
        (
            [("    emit: [{elasticsearch: meter-minute}]\n", FURTHER)],
            "Write one pipeline for each window whose results are revised",
        ),
        ([("key: meter\n", "key: meter\nretention: 30m\n")], "raise its retention to at least 31m10s"),
    ],
)  # fmt: skip
def test_what_can_not_be_revised_is_refused_with_what_to_do(changes: list[tuple[str, str]], said: str) -> None:
    assert said in problem_of(*changes)


@pytest.mark.guarantee(
    "G591",
    "Documents without revisions keep their form, digest, results, and rule in the ledger.",
    promise="late-records-revise-one-document",
)
def test_a_document_without_it_is_compiled_as_ever() -> None:
    plain = checked(TEXT.replace("late: {revise: 30m}\n", ""))
    assert "revision" not in plain.stages[0].field_types and plain.stages[0].revise_ms == 0
    assert EventTimeRule(10_000, 60_000, 300_000).written == {
        "delay_ms": 10_000,
        "idle_timeout_ms": 60_000,
        "max_ahead_ms": 300_000,
        "watermark": "partitions",
        "bound": "log_time",
    }
    assert checked().digest not in (plain.digest, checked(TEXT.replace("30m", "31m")).digest)


def test_sql_and_python_say_the_same() -> None:
    yaml = next(one for one in read_documents(TEXT.encode(), "revise.yaml") if one.kind == "pipeline")
    wanted = PipelineSpec.parse(yaml)
    (written,) = [one for one in translate(as_sql([dict(yaml.data)]), "x.sql").documents if one.kind == "pipeline"]
    assert PipelineSpec.parse(written) == wanted
    text = """
        create job `meter-minutes` with (event_time = 'ts', delay = '10s', late.revise = '30m') as
        insert into elasticsearch 'meter-minute'
        select meter, count(*) as n, sum(kwh) as kwh
        from tumble(table meters, descriptor(ts), interval '1' minute) group by meter, window_start, window_end
    """
    (said,) = [one.data for one in translate(text, "x.sql").documents]
    assert said["late"] == {"revise": "30m"}
    flow = stream("meters").event_time("ts", delay="10s")
    flow = flow.window(tumbling("1m"), name="per_minute", by=["meter"], n="count(*)", kwh="sum(kwh)")
    pipeline = flow.emit(elasticsearch="meter-minute").pipeline("meter-minutes", late={"revise": "30m"})
    assert pipeline.spec == wanted


@pytest.mark.guarantee("G590")
def test_it_counts_in_what_is_kept_and_read_again() -> None:
    pipeline = checked()
    assert pipeline.reach_ms == 31 * MINUTE_MS
    assert earliest_event(pipeline.windows, [100 * MINUTE_MS], 100 * MINUTE_MS) == 70 * MINUTE_MS
    graph = pipeline_graph(pipeline)
    assert graph["retention"]["needed_ms"] == 31 * MINUTE_MS + 10_000
    assert any("late records revise the results of 'per_minute' for 30m" in hint for hint in graph["hints"])
    assert graph["stages"][0]["state"]["panes_open"] == 33


def test_an_upgrade_tells_what_is_not_revised_any_more() -> None:
    (change, *_) = [
        one for one in changes_between(checked(), checked(TEXT.replace("30m", "5m"))) if "late" in one.change
    ]
    assert change.change == "late records revise results for 5m, not 30m"
    assert "not revised any more" in change.reason


@pytest.mark.guarantee(
    "G587",
    "The slice records which records are late, so a replay by any version drops the same records. No version revises "
    "windows that another version closed.",
    promise="late-records-revise-one-document",
)
def test_a_slice_says_what_is_late_and_no_version_revises_what_another_has_closed() -> None:
    rule = EventTimeRule(0, None, revise_ms=1_000, revises="a")
    assert rule_after(rule, None, None).revises_after_ms is None
    first = a_slice(1, rule=rule, watermark_ms=5_000)
    assert first.late_below_ms == 4_000
    assert replace(first, watermark_ms=None).late_below_ms is None
    done = a_checkpoint(1, closes_ms=6_000)
    assert rule_after(rule, first, done) == rule, "the same pipeline goes on"
    other = rule_after(replace(rule, revises="b"), first, done)
    assert other.revises_after_ms == 6_000
    second = a_slice(2, rule=other, watermark_ms=6_500)
    assert second.late_below_ms == 6_000
    assert rule_after(replace(rule, revises="b"), second, a_checkpoint(2)) == other, "and stays so"
    assert replace(second, watermark_ms=9_000).late_below_ms == 8_000
    plain = EventTimeRule(0, None)
    assert rule_after(plain, first, done) == plain and a_slice(2, rule=plain, watermark_ms=7).late_below_ms == 7


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Ten slices of ten minutes each, closed by themselves."""
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    opened.submit_job("meter-minutes", "1", {})
    opened.begin_run("meter-minutes", pid=1)
    rule = checked().event_time_rule
    for number in range(1, 11):
        closes_ms = number * 10 * MINUTE_MS
        opened.plan_slice(a_slice(number, job="meter-minutes", rule=rule, watermark_ms=closes_ms - 10 * MINUTE_MS))
        opened.commit_checkpoint(
            a_checkpoint(
                number,
                job="meter-minutes",
                emitted={"per_minute": closes_ms},
                closes_ms=closes_ms,
                latest_event_ms=closes_ms,
                results={"per_minute": 5},
                result_offsets={},
            )
        )
    yield opened
    opened.close()


@pytest.mark.guarantee("G587")
def test_the_ledger_keeps_the_rule_and_knows_when_results_are_final(ledger: Ledger) -> None:
    job = "meter-minutes"
    assert ledger.slices(job, 3, 3)[0].rule == checked().event_time_rule
    assert ledger.first_slice_closing(job, 20 * MINUTE_MS) == 2
    assert ledger.first_slice_final(job, 20 * MINUTE_MS) == 5
    assert ledger.first_slice_final(job, 70 * MINUTE_MS) == 10
    assert ledger.first_slice_final(job, 70 * MINUTE_MS + 1) is None


@pytest.mark.guarantee(
    "G589",
    "A backfill gives windows that can no longer be revised their last revision, and leaves the others to the job.",
    promise="late-records-revise-one-document",
)
def test_a_backfill_takes_what_is_final_with_all_its_late_records(ledger: Ledger) -> None:
    pipeline, starts = checked(), lambda stream: {0: 0, 1: 0}
    plan = plan_backfill(ledger, "meter-minutes", lambda *_: pipeline, starts, 0, None)
    assert plan.windows["per_minute"].up_to_ms == 70 * MINUTE_MS
    assert plan.records == 300, "up to the last slice that may hold a late record of them"
    early = plan_backfill(ledger, "meter-minutes", lambda *_: pipeline, starts, 0, 20 * MINUTE_MS)
    assert (early.windows["per_minute"].up_to_ms, early.records) == (20 * MINUTE_MS, 150)
    with pytest.raises(Conflict, match="except windows that late records can still revise"):
        plan_backfill(ledger, "meter-minutes", lambda *_: pipeline, starts, 80 * MINUTE_MS, None)


@pytest.mark.guarantee("G588")
def test_the_audit_leaves_to_later_slices_what_they_have_revised() -> None:
    scope = StoreScope("per_minute", None, 100, slice_committed=5, slice_planned=7, is_revised=True)

    def kinds(scope: StoreScope, *rows: Row) -> list[Kind]:
        found = Reconciler({"s": scope}, DeadLetterScope({}, {}, None), counts_only=frozenset()).findings(rows)
        return [one.kind for one in found]

    computed = Row("s", "a", Side.COMPUTED, "s-1", 60, None, b'{"n":1}')
    held = Row("s", "a", Side.STORED, "s-1", 60, 5, b'{"n":1}')
    revised = held._replace(body=b'{"n":2}', emission=6)
    letter = Row("s", "a", Side.LETTER, "s-1", 60, None, b"result")
    assert kinds(scope, computed, held) == [Kind.SAME]
    assert kinds(scope, computed, revised) == [Kind.LATER]
    assert kinds(scope, computed, revised._replace(emission=5)) == [Kind.DIFFERENT]
    assert kinds(scope, computed, revised._replace(emission=8)) == [Kind.DIFFERENT], "no slice of the job"
    assert kinds(scope, computed, revised._replace(emission=4), letter) == [Kind.REFUSED]
    assert kinds(scope, revised) == [Kind.LATER], "a window that only late records are in"
    assert kinds(scope, held) == [Kind.EXTRA]
    assert kinds(replace(scope, is_revised=False), computed, revised) == [Kind.DIFFERENT]
    assert kinds(replace(scope, is_revised=False), revised) == [Kind.EXTRA]
