"""Lookups: what a document may say, how it may change, what a slice goes by, and which rows are kept for replays."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.documents import read_documents, without_packed
from strandline.core.errors import Conflict, InvalidDocument, NotFound, PermanentError
from strandline.core.lookups import packed_rows
from strandline.core.lookups.packed_rows import TooLarge, pack_rows, unpack_rows
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.document_files import with_files
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.formats.lookups.documents import read_lookup
from strandline.processing.kinds.enrich.step import Enrich
from strandline.processing.lineage.dry_run import DryRun
from strandline.processing.operators.lookups.lookup_table import LookupTable
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.pipelines.row_step import Column
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.source.kept_lookups import LookupRef, LookupTableCache, SliceLookups, with_present_tables
from strandline.processing.source.recorded_counts import RecordedCounts
from strandline.processing.source.slice_rows import SourceFacts
from strandline.services.jobs.apply_documents import DocumentApplier
from strandline.services.jobs.checking import check_without_stack
from tests.support.control import Topics
from tests.support.growing_log import GrowingLog
from tests.support.ledgers import a_checkpoint, a_slice

LOOKUP = """\
lookup: sites
schema: {site: string, rated: double, area: {type: integer, min: 0}, owner: "string?"}
key: site
rows:
  - {site: A, rated: 100, area: 7}
  - {site: B, rated: 50.5, area: 8, owner: me}
"""
STREAM = "stream: turbines\nschema: {device: string, site: string, ts: timestamp, power: double, number: long}\n"
PIPELINE = """\
pipeline: j
input: {stream: turbines}
event_time: {field: ts, delay: 1s}
steps:
  - enrich: {lookup: sites, key: site, add: [rated]}
  - window: {name: w, tumbling: 10s, by: [device], aggregate: {n: count(*), load: sum(power / rated)}}
    emit: [{elasticsearch: w}]
"""


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidDocument) as refused:
        read_pipeline(text.encode(), "a.yaml")
    return [str(one) for one in refused.value.problems]


@pytest.mark.guarantee(
    "G444",
    "Two rows with the same key are an error that names both lines, of the document or the file. The size of a lookup "
    "is limited, also for clients other than the command line.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rated: 100,", "", ":5: rows[0]: rated: required but missing"),
        ("rated: 100", "rated: x", ':5: rows[0]: rated: expected a double, got "x"'),
        ("area: 8", "area: -8", ":6: rows[1]: area: expected an integer >= 0, got -8"),
        ("owner: me", "ovner: me", ":6: rows[1]: ovner is not in the lookup's schema"),
        ("site: B", "site: A", ":6: rows[1]: has the same key site 'A' as line 5; each key must be unique"),
        ("key: site", "key: sites", ":3: key: 'sites' is not a field of the schema; did you mean 'site'?"),
        ("key: site", "key: [site, site]", ":3: key[1]: 'site' occurs twice"),
        ("key: site", "key: rated", ":3: key: 'rated' is a double, which isn't a reliable key"),
        ("key: site", "key: owner", ":3: key: 'owner' is optional, but a row without its key can't be found"),
        (
            "rows:",
            "file: a.csv\nrows:",
            ":1: a lookup must have exactly one of rows, file, and source; this lookup has rows and file",
        ),
        ("site: string,", "site: string, x: {type: long, from: $.a}, ", ":2: schema.x: a row is flat"),
        (
            "key: site\n",
            "key: site\nrefresh: 10m\n",
            ":4: refresh: rows in a document don't change until it is applied again",
        ),
        ("rows:", "packed: '!'\nother:", ":5: other: unknown field"),
    ],
)
def test_what_is_wrong_in_a_lookup_is_told_with_field_and_line(old: str, new: str, expected: str) -> None:
    assert old in LOOKUP
    found = problems(LOOKUP.replace(old, new, 1) + "---\n" + STREAM + "---\n" + PIPELINE)
    assert [line for line in found if expected in line], "\n".join(found)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "lookup: sites",
            "lookup: site",
            ":5: steps[0].enrich.lookup: no lookup is called 'site'; did you mean 'sites'?",
        ),
        (
            "key: site",
            "key: sit",
            "the key of lookup 'sites' is site, but this step has sit; if a column has another name",
        ),
        ("key: site", "key: {site: sit}", ":5: steps[0].enrich.key: unknown column 'sit'; did you mean 'site'?"),
        (
            "key: site",
            "key: {site: number}",
            "'number' is a long, but 'site' of lookup 'sites' is a string; derive a column",
        ),
        ("[rated]", "[ratet]", ":5: steps[0].enrich.add: lookup 'sites' has no field 'ratet'; did you mean 'rated'?"),
        (
            "[rated]",
            "[site]",
            "a column is already called 'site'; rename the field of the lookup, as {site_2: site}",
        ),
        ("[rated]", "[rated, rated]", ":5: steps[0].enrich.add: a name is listed twice"),
        ("[rated]", "{_strandline_x: rated}", "is reserved for Strandline's own fields"),
        ("add: [rated]", "add: [rated], optinal: true", "unknown field 'optinal'; did you mean 'optional'?"),
        (
            "emit: [{elasticsearch: w}]\n",
            "emit: [{elasticsearch: w}]\n  - enrich: {lookup: sites, key: {site: device}, add: [area]}\n"
            "  - window: {name: h, tumbling: 1h, by: [device], aggregate: {n: sum(n)}}\n    emit: [{elasticsearch: h}]\n",
            ":8: steps[2].enrich: is after window 'w', but only records can be enriched",
        ),
    ],
)
def test_what_is_wrong_in_an_enrich_step_is_told_with_field_and_line(old: str, new: str, expected: str) -> None:
    assert old in PIPELINE
    found = problems(PIPELINE.replace(old, new, 1) + "---\n" + STREAM + "---\n" + LOOKUP)
    assert [line for line in found if expected in line], "\n".join(found)


def test_a_step_names_the_columns_as_it_likes_and_whole_numbers_of_both_sizes_are_compared() -> None:
    text = PIPELINE.replace(
        "key: site, add: [rated]", "key: {area: number}, add: {rated: rated, of: site}, optional: true"
    )
    checked = read_pipeline(
        (text + "---\n" + STREAM + "---\n" + LOOKUP.replace("key: site", "key: area")).encode(), "a"
    )
    columns = (Column("rated", "rated", "double"), Column("of", "site", "string"))
    assert checked.stages[0].steps_before == (Enrich(0, "sites", (("area", "number"),), columns, optional=True),)
    assert checked.inputs[0].columns_needed == ("device", "ts", "power", "number")
    numbers = pa.array([8, None, 2**40, 7], pa.int64())
    assert checked.tables["sites"].find([numbers]).to_pylist() == [1, None, None, 0]


@pytest.mark.parametrize("rows", [1, 9], ids=["fewer rows than records", "more"])
@pytest.mark.parametrize("optional", [True, False])
def test_a_time_beyond_the_year_9999_is_a_key_that_is_not_found(rows: int, optional: bool) -> None:
    """Python has no such time. More rows than records are searched in another way."""
    kind = pa.timestamp("us", tz="UTC")
    columns = [pa.array([hour * 3_600_000_000 for hour in range(rows)], kind), pa.array(range(rows), pa.int64())]
    table = LookupTable("tariffs", 1, pa.RecordBatch.from_arrays(columns, ["from", "rate"]), ["from"])
    step = Enrich(0, "tariffs", (("from", "hour"),), (Column("rate", "rate", "long"),), optional=optional)
    hours = pa.array([900_000_000_000_000_000, 0, None, 1_704_067_200_250_000], kind)
    found = RowSteps([step], {"hour": "timestamp"}).apply({"hour": hours}, 4, {"tariffs": table})
    assert found.columns["rate"].to_pylist() == ([None, 0, None, None] if optional else [0])
    shown = [] if optional else ["900000000000000000 us", "null", "2024-01-01 00:00:00.25"]
    assert [one.message for one in found.problems] == [
        f"steps[0].enrich: lookup tariffs has no row for hour {one} (version 1)" for one in shown
    ]


@pytest.mark.guarantee("G444")
def test_packed_rows_are_bounded_whoever_wrote_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpack_rows(pack_rows(b'{"a":1}\n{"a":2}')) == b'{"a":1}\n{"a":2}'
    bomb = base64.b64encode(zlib.compress(b" " * (packed_rows.TEXT_BYTES_MAX + 1))).decode()
    with pytest.raises(TooLarge, match="more than 8,388,608 bytes"):
        unpack_rows(bomb)
    for wrong in ("!", base64.b64encode(b"x").decode(), base64.b64encode(zlib.compress(b"{}" * 99)[:-5]).decode()):
        with pytest.raises(ValueError, match=r"zlib|truncated|base64|Only"):
            unpack_rows(wrong)
    monkeypatch.setattr(packed_rows, "PACKED_BYTES_MAX", 5)
    with pytest.raises(TooLarge):
        pack_rows(b'{"a":1}')


def test_packed_rows_do_not_count_as_the_text_of_a_document() -> None:
    long = LOOKUP[: LOOKUP.index("rows:")] + f'packed: "{"A" * 400_000}"\n'
    (document,) = read_documents(long, "a")
    assert len(str(document.data["packed"])) == 400_000
    assert b"AAAA" not in without_packed(long.encode())
    with pytest.raises(InvalidDocument, match="larger than 250,000 bytes"):
        read_documents(long.replace("packed", "owner"), "a")


FILE = LOOKUP[: LOOKUP.index("rows:")] + "file: {file}\n"


def of_file(directory: Path, name: str) -> Any:
    text = with_files(FILE.replace("{file}", name).encode(), directory / "a.yaml")
    return read_lookup(read_documents(text, "a.yaml")[0])


def test_a_file_of_rows_is_sent_with_its_document(tmp_path: Path) -> None:
    rows = [
        {"site": "A", "rated": 100.0, "area": 7, "owner": None},
        {"site": "B", "rated": 50.5, "area": 8, "owner": "me"},
    ]
    (tmp_path / "a.csv").write_text("site,rated,area,owner\nA,100,7,\nB,50.5,8,me\n")
    (tmp_path / "a.ndjson").write_text(
        '{"site":"A","rated":100,"area":7}\n\n{"site":"B","rated":50.5,"area":8,"owner":"me"}\n'
    )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.csv", "a.ndjson", "a.parquet"):
        assert of_file(tmp_path, name).rows.to_pylist() == rows
    inline = read_lookup(read_documents(LOOKUP, "a")[0])
    assert inline.rows.to_pylist() == rows
    with pytest.raises(
        InvalidDocument, match="must be read by the command line, and wasn't; apply the document with strandline apply"
    ):
        read_lookup(read_documents(FILE.replace("{file}", "a.csv"), "a")[0])


@pytest.mark.guarantee("G444")
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "a.csv",
            "site,rated,area\nA,1,1\nB,1,1\nA,2,2\n",
            "a.csv:4: file: has the same key site 'A' as line 2; each key",
        ),
        (
            "a.ndjson",
            '{"site":"A","rated":1,"area":1}\n\n{"site":"A","rated":1,"area":1}\n',
            "a.ndjson:3: file: has the same key",
        ),
        ("a.csv", 'site,rated,area,owner\n"A\n\nB",1,1,me\nA,1,1.5,\n', "a.csv:5: file: area: expected an integer"),
        ("a.csv", "site,rated,area\nA,1,1.5\n", "a.csv:2: file: area: expected an integer"),
        (
            "a.csv",
            "site,rated,area\nA,1\n",
            "a.yaml:4: file: {here}a.csv: the row at line 2 has 2 values, but the header has 3 names",
        ),
        ("a.txt", "", "a.yaml:4: file: {here}a.txt: a file of rows must have one of the suffixes .csv, .tsv, .ndjson"),
        ("missing.csv", None, "a.yaml:4: file: {here}missing.csv: no such file"),
    ],
)
def test_what_is_wrong_in_a_file_of_rows_is_told_with_its_line(
    tmp_path: Path, name: str, content: str | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidDocument) as refused:
        of_file(tmp_path, name)
    told = str(refused.value.problems[0]).removeprefix(f"{tmp_path}/")
    assert told.startswith(expected.replace("{here}", f"{tmp_path}/"))


def test_a_check_without_a_stack_needs_the_lookup_in_the_text() -> None:
    assert check_without_stack((PIPELINE + "---\n" + STREAM).encode(), "a") is None
    judged = check_without_stack("---\n".join((PIPELINE, STREAM, LOOKUP)).encode(), "a")
    assert judged is not None
    assert judged.problems == []


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield opened
    opened.close()


def apply(ledger: Ledger, *texts: str) -> list[tuple[str, str, int, list[str]]]:
    made = DocumentApplier(ledger, Topics(ledger), lambda pipeline: None, lambda topic: {0: 0, 1: 0})
    applied = made.apply("---\n".join(texts).encode(), "a.yaml")
    return [(one.kind, one.outcome, one.version, one.notes) for one in applied]


def rated(value: float) -> str:
    """The lookup, with another value in a row."""
    return LOOKUP.replace("rated: 100", f"rated: {value}")


def test_a_changed_document_is_a_new_version_and_the_same_content_is_none(ledger: Ledger) -> None:
    assert apply(ledger, STREAM, LOOKUP, PIPELINE) == [
        ("stream", "created", 1, []),
        ("lookup", "created", 1, []),
        ("pipeline", "created", 1, []),
    ]
    assert apply(ledger, LOOKUP) == [("lookup", "unchanged", 1, [])]
    assert apply(ledger, rated(3)) == [("lookup", "changed", 2, ["job j uses this version from its next slice"])]
    assert [(row.name, row.version, row.rows) for row in ledger.lookups()] == [("sites", 2, 2)]
    assert ledger.job_version("j").lookup_versions == {"sites": 1}
    assert load_pipeline(ledger, "j", 1).lookups == (("sites", 1),)


@pytest.mark.guarantee("G443")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("rated: double", "rated: long"), "field rated from double to long: add the new type as another field"),
        (('owner: "string?"', 'owner: "integer?"'), "field owner from string to integer"),
        (("key: site", "key: area"), "its key from site to area: register a lookup of another name"),
        (("rated", "ratio"), "its steps[0].enrich.add lookup 'sites' has no field 'rated'; did you mean 'ratio'?"),
    ],
)
def test_a_change_that_a_job_or_a_replay_can_not_take_is_refused(
    ledger: Ledger, change: tuple[str, str], expected: str
) -> None:
    changed = LOOKUP.replace(*change).replace("50.5", "50").replace(", owner: me", "")
    apply(ledger, STREAM, LOOKUP, PIPELINE)
    with pytest.raises(Conflict) as refused:
        apply(ledger, changed)
    assert expected in str(refused.value)
    assert ledger.lookup("sites").version == 1


def test_while_no_job_needs_it_a_lookup_may_become_anything_and_its_rows_of_before_go(ledger: Ledger) -> None:
    apply(ledger, STREAM, LOOKUP)
    digest = ledger.lookup("sites").digest
    apply(ledger, LOOKUP.replace("rated: double", "rated: string").replace("100", "x").replace("50.5", "y"))
    with pytest.raises(NotFound):
        ledger.lookup_table(digest)
    ledger.delete_lookup("sites")
    with pytest.raises(NotFound):
        ledger.lookup("sites")


def begin(ledger: Ledger) -> int:
    return ledger.begin_run("j", 1).epoch


@pytest.mark.guarantee("G441")
def test_slices_from_before_a_job_used_a_lookup_go_by_one_version_for_ever(ledger: Ledger) -> None:
    apply(ledger, STREAM, rated(1))
    apply(ledger, rated(2), PIPELINE)
    apply(ledger, rated(3), PIPELINE.replace("tumbling: 10s", "tumbling: 20s"))
    assert ledger.job_version("j", 1).lookup_versions == {"sites": 2}
    assert ledger.job_version("j", 2).lookup_versions == {"sites": 2}
    slices = SliceLookups(ledger, load_pipeline(ledger, "j", 2).lookups)
    found = [slices.of(row)[0].version for row in (a_slice(1), a_slice(2, lookup_versions={"sites": 3}))]
    assert found == [2, 3]


@pytest.mark.guarantee("G443")
def test_who_applied_a_change_in_between_is_not_overwritten(ledger: Ledger) -> None:
    apply(ledger, STREAM, LOOKUP, PIPELINE)
    row = ledger.lookup("sites")
    with pytest.raises(Conflict, match="apply the documents again"):
        ledger.put_lookup("sites", row.document, "another", pack_rows(b""), 0, base=0)
    with pytest.raises(Conflict, match="or another job that uses it"):
        ledger.put_lookup("sites", row.document, "another", pack_rows(b""), 0, base=1, floor=None)
    with pytest.raises(Conflict, match="Lookup sites has just got another version"):
        ledger.submit_job("k", "", {"pipeline": "k"}, lookups={"sites": 7})


@pytest.mark.guarantee("G440")
def test_a_record_that_comes_when_a_version_is_applied_is_enriched_by_it(ledger: Ledger) -> None:
    apply(ledger, STREAM, LOOKUP, PIPELINE)
    epoch = begin(ledger)
    rule = EventTimeRule(delay_ms=1_000, idle_timeout_ms=None)
    settings = PlannerSettings(
        "j", 1, epoch, (InputStream("turbines"),), 100, rule, (), lookups=(("sites", ("rated",)),)
    )
    index: Any = GrowingLog(lambda: apply(ledger, rated(2)))
    planner = SlicePlanner(settings, ledger, index, filling_ms=0)
    first = planner.next_slice()
    assert first is not None
    ledger.commit_checkpoint(a_checkpoint(1, epoch, "j"))
    second = planner.next_slice()
    assert second is not None
    assert (first.lookup_versions, second.lookup_versions) == ({"sites": 1}, {"sites": 2})
    assert [row.lookup_versions for row in ledger.slices("j", 1, 2)] == [{"sites": 1}, {"sites": 2}]


@pytest.mark.guarantee(
    "G443",
    "A change of a lookup that a job or a replay can't use is refused: another type, another key, or a field that a "
    "pipeline adds. No slice uses a version that lacks an added field. If two changes are concurrent, one must be "
    "applied again.",
    promise="unusable-documents-are-refused",
)
def test_a_run_takes_no_version_that_lacks_what_its_pipeline_adds(ledger: Ledger) -> None:
    """The lookup and a pipeline that does without the field are applied together, the lookup first."""
    apply(ledger, STREAM, LOOKUP, PIPELINE)
    rule = EventTimeRule(delay_ms=1_000, idle_timeout_ms=None)
    settings = PlannerSettings(
        "j", 1, begin(ledger), (InputStream("turbines"),), 100, rule, (), lookups=(("sites", ("rated", "site")),)
    )
    index: Any = GrowingLog(lambda: None)
    planner = SlicePlanner(settings, ledger, index, filling_ms=0)
    row = ledger.lookup("sites")
    fields = {name: one for name, one in row.document["schema"].items() if name != "rated"}
    ledger.put_lookup("sites", {**row.document, "schema": fields}, "another", pack_rows(b""), 0)
    assert (planner.next_slice(), ledger.slice_count("j")) == (None, 0)
    ledger.put_lookup("sites", row.document, "a third", pack_rows(b""), 0)
    planned = planner.next_slice()
    assert planned is not None
    assert planned.lookup_versions == {"sites": 3}


def test_a_process_holds_a_bounded_amount_of_tables_and_says_when_one_is_gone(ledger: Ledger) -> None:
    apply(ledger, STREAM, rated(1), PIPELINE)
    refs = []
    for value in (1, 2, 3):
        apply(ledger, rated(value))
        row = ledger.lookup("sites")
        refs.append(LookupRef("sites", row.version, row.digest))

    class Opened:
        times = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

        def close(self) -> None:
            self.times += 1

    opened: Any = Opened()
    one = LookupTableCache(lambda: opened).tables(refs[:1])["sites"].bytes_held
    opened.times = 0
    kept = LookupTableCache(lambda: opened, held_bytes_max=2 * one)
    for number in (0, 1, 0, 2, 0, 1):
        table = kept.tables([refs[number]])["sites"]
        assert table.column("rated", pa.float64())[0].as_py() == number + 1
    assert opened.times == 4, "version 2 was the least used when version 3 came, and was read again"
    with pytest.raises(PermanentError, match="Version 4 of lookup sites is not kept any more"):
        kept.tables([LookupRef("sites", 4, "gone")])


def test_a_dead_letter_that_is_put_back_would_be_enriched_by_the_present_rows(ledger: Ledger) -> None:
    apply(ledger, STREAM, LOOKUP, PIPELINE)
    record = b'{"device":"d","site":"C","ts":1700000000000,"power":1,"number":1}'

    def outcome() -> str:
        pipeline = with_present_tables(ledger, load_pipeline(ledger, "j", 1))
        return DryRun(pipeline, None).of_records([record], [{}], 1_700_000_000_000)[0].outcome

    assert outcome() == "lookup"
    apply(ledger, LOOKUP + "  - {site: C, rated: 1, area: 1}\n")
    assert outcome() == "accepted"


def test_a_replay_by_another_version_of_the_job_may_find_other_rows_missing() -> None:
    facts = SourceFacts(records=3, rejected={"lookup": 1}, latest_ms={}, latest_log_ms=None)  # type: ignore[arg-type]
    RecordedCounts("j", 1, 1, 3, {}, has_expression=False).require_same(facts)
    with pytest.raises(PermanentError, match="0 records rejected as lookup then, 1 now"):
        RecordedCounts("j", 1, 1, 3, {}, has_expression=True).require_same(facts)


def test_the_pipeline_of_a_stream_that_changes_is_checked_with_its_lookups(ledger: Ledger) -> None:
    apply(ledger, STREAM, LOOKUP, PIPELINE)
    (applied,) = apply(ledger, STREAM.replace("number: long", 'number: long, wind: "double?"'))
    assert applied == ("stream", "changed", 2, ["job j uses this version from its next slice"])
    assert StreamSpec.from_document(ledger.stream("turbines").document).fields["wind"].type == "double"
