"""The contract of all kinds of steps and windows: those of Strandline, and those of the package `tests/plugins/acme_kinds`, which
is defined outside of Strandline.

The lists of examples must name each kind, so a new kind is in all of these tests.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from strandline.core.documents import read_documents
from strandline.core.errors import FunctionUnusable, InvalidDocument, PermanentError
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.frontends.steps import step_keywords, window_forms
from strandline.processing.audit_queries.table import Database
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.kinds.count.shape import CountShape
from strandline.processing.kinds.stage_words import words_of
from strandline.processing.kinds.windows.document import WindowSpec
from strandline.processing.operators.closing import Closing
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.functions.installed import package_of
from strandline.processing.pipelines.kind_registry import STAGE_KEYWORDS, package_kinds, part_of
from strandline.processing.pipelines.model.pipeline import PipelineSpec, json_schema
from strandline.processing.pipelines.upgrade import changes_between
from tests.support import installed_package
from tests.support.plugins import forget_toys, install_toys
from tests.support.waiting import stretched
from tests.support.window_examples import WINDOWS
from tests.support.window_results import results_of_both

STREAM = """\
stream: pumps
schema: {pump: string, ts: timestamp, temp: double, key: string}
key: pump
---
"""
LOOKUP = """\
lookup: sites
schema: {pump: string, site: string}
key: pump
rows: [{pump: a, site: north}, {pump: b, site: south}]
---
"""
PIPELINE = """\
pipeline: p
input: {stream: pumps}
event_time: {field: ts, delay: 1m}
steps:
- STEP
- emit: [{elasticsearch: out}]
"""
STEPS = {
    "derive": "derive: {warm: temp * 1.8 + 32}",
    "where": "where: temp > 11",
    "map": 'map: {function: "acme_quality:fahrenheit", reads: [temp], columns: {warm: double}, deterministic: true}',
    "select": "select: [pump, temp]",
    "drop": "drop: [temp]",
    "enrich": "enrich: {lookup: sites, key: pump, add: [site]}",
    "dedupe": "dedupe: {by: [pump, ts], within: 1h}",
    "distinct": "distinct: {by: [pump, ts]}",
    "bound": "bound: {field: temp, into: shown, low: 10.5, high: 12}",
}
"""Field of a step that takes rows one by one -> an example."""
RECORDS = [
    json.dumps({"pump": pump, "ts": f"2026-03-01T0{hour}:00:00Z", "temp": temp, "key": "k"}).encode()
    for hour, pump, temp in [(0, "a", 10.0), (1, "b", 11.0), (1, "b", 11.0), (2, "a", 12.5), (5, "a", 13.0)]
]


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toys, and the function that `map` calls."""
    monkeypatch.setenv("STRANDLINE_ALLOW_FUNCTIONS", "acme_quality")
    monkeypatch.syspath_prepend(installed_package.install(tmp_path))
    package_of.cache_clear()
    install_toys(monkeypatch, "acme_kinds")
    yield
    forget_toys(monkeypatch)
    package_of.cache_clear()


def text_of(step: str) -> str:
    """Return documents with this step, as YAML."""
    pipeline = PIPELINE.replace("STEP", step)
    if step.startswith("distinct"):
        pipeline = pipeline.replace("{stream: pumps}", "{stream: pumps, end: latest}")
    if "window" in step:
        pipeline = pipeline.replace("- emit", "  emit")
    return STREAM + (LOOKUP if "sites" in step else "") + pipeline


def window_of(fields: str) -> str:
    return f"window: {{name: some, {fields}, by: [key], aggregate: {{n: count(*)}}}}"


ALL_STEPS = {**STEPS, **{name: window_of(fields) for name, fields in WINDOWS.items()}}


def checked(text: str) -> CheckedPipeline:
    return read_pipeline(text.encode(), "x.yaml")


def results_of(pipeline: CheckedPipeline, slice_records: int | None = None) -> list[dict[str, Any]]:
    """Return the results of the records at the desk, ordered, without the number of the slice that emitted them."""
    desk = Desk(pipeline, slice_records)
    outcomes = [*desk.feed(DeskRecords(RECORDS, [0] * len(RECORDS))), *desk.drain()]
    assert all(isinstance(one, DeskResult) for one in outcomes), outcomes
    found = [json.loads(one.document.source) for one in outcomes if isinstance(one, DeskResult)]
    for one in found:
        del one["strandline"]["emission"]
    return sorted(found, key=json.dumps)


SPECS = {"stream": StreamSpec, "lookup": LookupSpec, "pipeline": PipelineSpec}


def canonical(text: str | bytes) -> list[dict[str, object]]:
    return [SPECS[one.kind].parse(one).as_document() for one in read_documents(text, "x.yaml")]


def test_each_kind_has_an_example() -> None:
    assert STEPS.keys() == {*step_keywords()} - {*STAGE_KEYWORDS}
    assert {name.partition(" ")[0] for name in WINDOWS} == {*WindowSpec.extended().keywords()}
    assert {*package_kinds()} == {"bound", "shifts"}


@pytest.mark.guarantee(
    "G870",
    "A kind of step or window of a package has the properties of the built-in ones. Results don't depend on slices, "
    "the audit computes the same windows, and errors have their line. Another release of the package stops the job.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize("step", ALL_STEPS.values(), ids=ALL_STEPS)
def test_results_do_not_depend_on_slices(step: str) -> None:
    pipeline = checked(text_of(step))
    results = results_of(pipeline)
    assert results
    assert results_of(pipeline, slice_records=1) == results


@pytest.mark.parametrize("step", ALL_STEPS.values(), ids=ALL_STEPS)
def test_a_document_and_its_canonical_form_are_one_pipeline(step: str) -> None:
    pipeline = checked(text_of(step))
    again = PipelineSpec.from_document(pipeline.spec.as_document())
    assert again == pipeline.spec
    written = [*canonical(text_of(step))[:-1], again.as_document()]
    assert checked(yaml.safe_dump_all(written)).digest == pipeline.digest


@pytest.mark.parametrize("step", ALL_STEPS.values(), ids=ALL_STEPS)
def test_an_unrelated_step_changes_no_identity(step: str) -> None:
    pipeline = checked(text_of(step))
    other = checked(text_of(step).replace("steps:\n", "steps:\n- {emit: [{stream: raw}], name: raw}\n"))
    assert [one.identity for one in other.stages] == [one.identity for one in pipeline.stages]
    assert [one.identity for one in other.record_stages[1:]] == [one.identity for one in pipeline.record_stages]


@pytest.mark.parametrize("step", ALL_STEPS.values(), ids=ALL_STEPS)
def test_the_front_ends_write_each_step_and_read_the_same(step: str) -> None:
    documents = list(yaml.safe_load_all(text_of(step)))
    wanted = canonical(text_of(step))
    assert canonical(translate(as_sql(documents), "x.sql").yaml) == wanted
    names: dict[str, Any] = {}
    exec(as_python(documents), names)
    found = [one.spec.as_document() for one in names.values() if type(one).__name__ in ("Stream", "Lookup", "Pipeline")]
    assert found == wanted


@pytest.mark.parametrize("step", ALL_STEPS.values(), ids=ALL_STEPS)
def test_the_graph_of_a_pipeline_has_words_for_each_step(step: str) -> None:
    graph = pipeline_graph(checked(text_of(step)))
    (stage,) = [*graph["stages"], *graph["record_stages"]]
    assert stage["windows"] if "window" in step else [one for one in stage["steps_before"] if one]


def test_the_schema_for_editors_describes_each_field() -> None:
    definitions: Any = json_schema()["$defs"]
    for model, fields in (("StepSpec", step_keywords()), ("WindowSpec", WindowSpec.extended().keywords())):
        for field in fields:
            assert definitions[model]["properties"][field]["description"]
            assert {"required": [field]} in definitions[model]["oneOf"]
    assert definitions["BoundSpec"]["required"] == ["field", "into", "low", "high"]


@pytest.mark.guarantee("G870")
@pytest.mark.parametrize("fields", WINDOWS.values(), ids=WINDOWS)
def test_the_audit_computes_the_windows_of_the_operators(fields: str, tmp_path: Path) -> None:
    (stage,) = checked(text_of(window_of(fields))).stages
    database = Database(tmp_path / "spilled", 256)
    try:
        audited, computed = results_of_both(stage, {"key": "string"}, database, tmp_path)
    finally:
        database.close()
    assert len(computed) > 10
    assert audited == computed


@pytest.mark.parametrize("fields", WINDOWS.values(), ids=WINDOWS)
def test_the_graph_has_the_bytes_that_a_key_needs(fields: str) -> None:
    """Compare the figures with the state of an operator whose keys have a record every 30 minutes."""
    aggregates = "{n: count(*), mean: avg(temp), most: max(temp)}"
    text = text_of(window_of(fields).replace("{n: count(*)}", aggregates)).replace("delay: 1m", "delay: 1h")
    pipeline = checked(text)
    (stage,) = pipeline.stages
    (described,) = pipeline_graph(pipeline)["stages"]
    operator = part_of(stage.kind, "operator").operator_of(stage, {"key": "string", "temp": "double"})
    step_us, delay_ms, keys = 1_800_000_000, 3_600_000, 100
    names, temps = pa.array([f"key number {one:09}" for one in range(keys)]), pa.array([1.5] * keys)
    state, largest = operator.empty_state(), 0
    for at_us in range(0, 2 * 86_400_000_000, step_us):
        rows = operator.rows(0, np.full(keys, at_us), {"key": names, "temp": temps})
        before_ms, up_to_ms = (at_us - step_us) // 1000 - delay_ms, at_us // 1000 - delay_ms
        state, _ = operator.step(state, [rows], Closing(before_ms, up_to_ms))
        largest = max(largest, state.nbytes)
    waiting = described["state"].get("bytes_a_waiting_row", 0) * delay_ms * 1000 // step_us
    assert largest / keys / 2 < described["state"]["bytes_a_key"] + waiting < 2 * largest / keys


@pytest.mark.parametrize("fields", WINDOWS.values(), ids=WINDOWS)
def test_increase_adds_the_differences_in_each_window(fields: str) -> None:
    """No temperature falls, so the increase is the sum of the differences to the record before."""
    text = text_of(window_of(fields).replace("count(*)", "increase(temp)"))
    found = results_of(checked(text))
    assert results_of(checked(text), slice_records=1) == found
    if "previous" in fields:
        assert sorted(result["n"] for result in found if result["n"] is not None) == [0, 1, 1.5]
        return
    records = [(one["ts"].replace("Z", ".000Z"), one["temp"]) for one in map(json.loads, RECORDS)]
    expected = []
    for start, end in ((one["window"]["start"], one["window"]["end"]) for one in found):
        inside = [at for at, (time, _) in enumerate(records) if start <= time < end and at]
        expected.append(sum(records[at][1] - records[at - 1][1] for at in inside) if inside else None)
    assert found and [result["n"] for result in found] == expected


def test_windows_that_keep_records_for_later_ones_add_all_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a window can have more than two records, so another stage computes the differences."""
    monkeypatch.setattr(CountShape, "memory_ms", 7_200_000)
    pipeline = checked(text_of(window_of(WINDOWS["count"]).replace("count(*)", "increase(temp)")))
    assert [str(one.windows) for one in pipeline.stages] == [
        "of each record and the one before it, within 2h",
        "of 3 records, within 1d",
    ]


@pytest.mark.parametrize("fields", WINDOWS.values(), ids=WINDOWS)
def test_an_explanation_names_the_window_that_closes_next(fields: str) -> None:
    (stage,) = checked(text_of(window_of(fields))).stages
    closed_ms = 1_772_323_200_000
    end_ms, words = words_of(stage).closing(stage, closed_ms, closed_ms + 60_000, str)
    assert end_ms > closed_ms
    assert str(end_ms) in words and "some" in words


@pytest.mark.parametrize("fields", WINDOWS.values(), ids=WINDOWS)
def test_another_kind_of_windows_is_an_upgrade(fields: str) -> None:
    old = checked(text_of(window_of("tumbling: 11h")))
    new = checked(text_of(window_of(fields)))
    (change,) = [one for one in changes_between(old, new) if "window some from" in one.change]
    assert (change.effect, f"to {new.stages[0].shape}" in change.change) == ("rewind", True)


@pytest.mark.guarantee("G870")
def test_the_package_of_a_kind_is_a_part_of_what_results_depend_on() -> None:
    pipeline = checked(text_of(STEPS["bound"]))
    assert pipeline.packages == {"bound": "acme-kinds 1.0"}
    (path,) = pipeline.record_stages[0].identity["paths"]
    assert path["steps"] == [{"bound": ["temp", "shown", 10.5, 12.0], "kind_package": "acme-kinds 1.0"}]
    (stage,) = checked(text_of(window_of(WINDOWS["shifts"]))).stages
    assert stage.identity["kind_package"] == "acme-kinds 1.0"
    (stage,) = checked(text_of(window_of(WINDOWS["tumbling"]))).stages
    assert "kind_package" not in stage.identity
    part_of("bound", "operator", "acme-kinds 1.0")
    with pytest.raises(
        FunctionUnusable, match=r"bound belongs to acme-kinds 1\.0 here, but to acme-kinds 0\.9 where the job"
    ):
        part_of("bound", "operator", "acme-kinds 0.9")


@pytest.mark.guarantee("G870")
def test_mistakes_in_the_fields_of_a_package_have_their_line() -> None:
    for old, new, said in [
        ("low: 10.5, high: 12", "low: 13, high: 12", "x.yaml:9: steps[0].bound.low: 13.0 is more than 'high', 12.0"),
        ("low: 10.5, ", "", "x.yaml:9: steps[0].bound.low: is missing; expected: Smallest value."),
        ("low", "lo", "x.yaml:9: steps[0].bound.lo: unknown field 'lo'; did you mean 'low'?"),
        ("bound", "bund", "x.yaml:9: steps[0].bund: unknown field 'bund'; did you mean 'bound'?"),
        ("field: temp", "field: tmp", "x.yaml:9: steps[0].bound.field: unknown column 'tmp'; did you mean 'temp'?"),
    ]:
        with pytest.raises(InvalidDocument) as refused:
            checked(text_of(STEPS["bound"]).replace(old, new))
        assert said in str(refused.value)


def test_windows_without_a_form_in_sql_stay_in_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(window_forms()["shifts"].plan), "forms", ())
    documents = list(yaml.safe_load_all(text_of(window_of(WINDOWS["shifts"]))))
    with pytest.raises(PermanentError, match="SQL has no form for a window with shifts; keep this document in YAML"):
        as_sql(documents)
    with pytest.raises(InvalidDocument, match="'shifts' is not a function of a relation; expected one of: tumble, hop"):
        translate("create job j as select n from table(shifts(table s, descriptor(ts), array['06:00']))", "x.sql")


def test_workers_import_the_operators_of_a_package_without_models_of_documents() -> None:
    program = "import sys; from strandline.processing.pipelines.kind_registry import part_of\n"
    program += "for kind in ('bound', 'shifts'): part_of(kind, 'operator', 'acme-kinds 1.0')\n"
    program += "sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=stretched(60))


def install(directory: Path, entry_points: str, **modules: str) -> None:
    """Put the package `acme-more` with these entry points there. `modules`: name in the package -> its code."""
    metadata = directory / "acme_more-2.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-more\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[strandline.kinds]\n{entry_points}\n")
    (directory / "acme_more").mkdir()
    for name, code in modules.items():
        (directory / "acme_more" / f"{name}.py").write_text(code)


@pytest.mark.guarantee("G871")
@pytest.mark.parametrize(
    ("entry_point", "document", "said"),
    [
        ("bound = acme_more", "", "the kind bound is in acme-kinds 1.0 and in acme-more 2.0"),
        ("other = acme_more", "1 / 0", "the kind other of acme-more 2.0 can't be imported: ZeroDivisionError"),
        ("other = acme_gone", "", "the kind other of acme-more 2.0 can't be imported: ModuleNotFoundError"),
        (
            "other = acme_more",
            "from acme_kinds.bound.document import Fields",
            "the kind other of acme-more 2.0 has other fields than other in its document",
        ),
    ],
)
def test_a_kind_that_cannot_be_used_is_refused_where_a_document_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_point: str, document: str, said: str
) -> None:
    root = tmp_path / "more"
    root.mkdir()
    install(root, entry_point, document=document)
    monkeypatch.syspath_prepend(root)
    install_toys(monkeypatch)
    name = entry_point.partition(" ")[0]
    with pytest.raises(InvalidDocument) as refused:
        checked(text_of(STEPS["bound"].replace("bound", name)))
    assert said in str(refused.value)
    checked(text_of(STEPS["derive"]))


@pytest.mark.parametrize("step", [STEPS["bound"], window_of(WINDOWS["shifts"])], ids=["bound", "shifts"])
def test_a_stored_document_is_readable_without_its_package(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document = checked(text_of(step)).spec.as_document()
    streams = [StreamSpec.parse(read_documents(text_of(step), "x.yaml")[0])]
    forget_toys(monkeypatch)
    stored = PipelineSpec.from_document(document)
    assert stored.as_document() == document
    assert pickle.loads(pickle.dumps(stored)).as_document() == document
    assert [emit.name for _, emit in stored.emissions()] == ["out"]
    with pytest.raises(
        FunctionUnusable, match=r"no installed package has the kind (bound|shifts); install the package"
    ):
        check(stored, streams)
    with pytest.raises(InvalidDocument, match="unknown field"):
        checked(text_of(step))


@pytest.mark.guarantee(
    "G871",
    "A package can't replace a built-in kind. A document with an unusable kind is refused, and no other document is "
    "affected.",
    promise="unusable-documents-are-refused",
)
def test_no_package_replaces_a_kind_of_strandline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "more"
    root.mkdir()
    install(root, "where = acme_more\nsession = acme_more\noffset = acme_more", document="1 / 0")
    monkeypatch.syspath_prepend(root)
    install_toys(monkeypatch)
    assert {*package_kinds()} == {"bound", "shifts"}
    assert results_of(checked(text_of(STEPS["where"])))
