"""The objects for Kibana fit the documents: every field is in the mapping, and every operation accepts its type."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.results.charts.saved_objects import as_ndjson, saved_objects
from strandline.results.dead_letters.documents import DEAD_LETTER_MAPPING
from strandline.results.document import DocumentShape
from strandline.results.mapping import build_mapping
from strandline.services.cli import commands as command_line
from strandline.services.jobs.apply_documents import check_documents
from strandline.services.jobs.result_views import kibana_objects
from tests.support.control import api_description
from tests.support.lens import faults, field_type, panels

ROOT = Path(__file__).parents[2]
FILES = {"nab": "examples/nab.yaml", "turbine-health": "strandline/example/turbines.yaml"}
EXAMPLES = {job: (ROOT / path).read_text() for job, path in FILES.items()}
KEYS = {
    "text": "string",
    "whole": "integer",
    "flag": "boolean",
    "at": "timestamp",
    "money": "decimal(12,2)",
}
AGGREGATES = {
    "n": "count(*)", "total": "sum(size)", "mean": "avg(size)", "least": "min(whole)", "most": "max(money)",
    "first_at": "min(at)", "last_text": "max(text)", "spread": "stddev_pop(size)", "share": "sum(size) / count(*)",
}  # fmt: skip
MORE_AGGREGATES = {"n": "sum(n)", "runs": "count(*)"}
DASHBOARD_ATTRIBUTES = {
    "title", "description", "kibanaSavedObjectMeta", "timeRestore", "timeFrom", "timeTo", "refreshInterval",
    "controlGroupInput", "panelsJSON", "optionsJSON", "hits", "version",
}  # fmt: skip
"""All that Kibana's schema of a dashboard knows (dashboard_saved_object/schema/v1/v1.ts); it forbids any other."""


def generated(seed: int) -> str:
    """A stream and a pipeline of one or two windows, with keys and aggregates of every type."""
    chance = random.Random(seed)
    by = chance.sample(sorted(KEYS), chance.randrange(0, 4))
    aggregates = {"n": "count(*)"} | {
        name: AGGREGATES[name] for name in chance.sample(sorted(AGGREGATES), chance.randrange(0, 7))
    }
    window = chance.choice(["tumbling: 1m", "sliding: {size: 1m, every: 20s}", "tumbling: 1s"])
    text = f"""
stream: things
schema: {{ts: timestamp, size: double, {", ".join(f"{name}: '{kind}?'" for name, kind in KEYS.items())}}}
---
pipeline: job-{seed}
input: {{stream: things}}
event_time: {{field: ts, delay: 10s}}
steps:
  - window: {{name: first, {window}, by: [{", ".join(by)}], aggregate: {json.dumps(aggregates)}}}
    emit: [{{elasticsearch: alias-{seed}-first}}, {{elasticsearch: alias-{seed}-copy}}]
"""
    if chance.random() < 0.5 and window.startswith("tumbling"):
        text += f"""  - window: {{name: second, tumbling: 1h, by: [{", ".join(by[:1])}],
             aggregate: {json.dumps(MORE_AGGREGATES)}}}
    emit: [{{elasticsearch: alias-{seed}-second}}]
"""
    return text + f"dead_letters: {{index: {'true' if chance.random() < 0.5 else 'false'}}}\n"


def pipeline_of(text: str) -> CheckedPipeline:
    (pipeline,) = check_documents(text, "test", {}).pipelines
    return pipeline


def mappings(pipeline: CheckedPipeline) -> dict[str, dict[str, Any]]:
    """Alias, or index of dead letters -> the mapping."""
    letters = {f"{pipeline.job}.dead-letters": DEAD_LETTER_MAPPING} if pipeline.spec.dead_letters.index else {}
    return letters | {
        emit.name: build_mapping(
            DocumentShape(
                emit.name,
                pipeline.job,
                stage.name,
                1,
                tuple(zip(stage.by, stage.by_types, strict=True)),
                tuple((column.name, column.type) for column in stage.aggregates),
            )
        )
        for stage in pipeline.stages
        for emit in stage.emits
    }


SLIDING = """
stream: things
schema: {ts: timestamp, size: double}
---
pipeline: overlapping
input: {stream: things}
event_time: {field: ts, delay: 10s}
steps:
  - window: {name: w, sliding: {size: 1m, every: 20s}, aggregate: {n: count(*), total: sum(size)}}
    emit: [{elasticsearch: things}]
"""
CASES = EXAMPLES | {f"generated {seed}": generated(seed) for seed in range(50)}
each_case = pytest.mark.parametrize("text", CASES.values(), ids=CASES)


@each_case
def test_every_field_and_operation_fits_the_mapping(text: str) -> None:
    pipeline = pipeline_of(text)
    of_alias = mappings(pipeline)
    found = list(panels(kibana_objects(pipeline)))
    assert {panel.alias for panel in found} == set(of_alias)
    assert [fault for panel in found for fault in faults(panel, of_alias[panel.alias])] == []


@each_case
def test_data_views_and_searches_name_an_alias_and_fields_that_it_has(text: str) -> None:
    pipeline = pipeline_of(text)
    of_alias = mappings(pipeline)
    objects = kibana_objects(pipeline)
    views = {one["id"]: one["attributes"] for one in objects if one["type"] == "index-pattern"}
    assert sorted(view["title"] for view in views.values()) == sorted(of_alias)
    for view in views.values():
        mapping = of_alias[view["title"]]
        assert field_type(mapping, view["timeFieldName"]) == "date"
        named = {*json.loads(view["fieldAttrs"]), *json.loads(view["fieldFormatMap"])}
        assert {name for name in named if field_type(mapping, name) is None} == set()
    searches = [one for one in objects if one["type"] == "search"]
    assert len(searches) == len(views)
    for search in searches:
        (reference,) = search["references"]
        mapping = of_alias[views[reference["id"]]["title"]]
        assert (
            json.loads(search["attributes"]["kibanaSavedObjectMeta"]["searchSourceJSON"])["indexRefName"]
            == reference["name"]
        )
        columns = search["attributes"]["columns"] + [field for field, _ in search["attributes"]["sort"]]
        assert {name for name in columns if field_type(mapping, name) is None} == set()


@each_case
def test_dashboards_have_what_their_schema_knows_and_panels_stand_beside_each_other(text: str) -> None:
    objects = kibana_objects(pipeline_of(text))
    assert len({(one["type"], one["id"]) for one in objects}) == len(objects)
    assert all(
        {"type", "id", "attributes", "references", "coreMigrationVersion", "typeMigrationVersion"} == set(one)
        for one in objects
    )
    (dashboard,) = [one for one in objects if one["type"] == "dashboard"]
    assert set(dashboard["attributes"]) <= DASHBOARD_ATTRIBUTES
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard["attributes"]["panelsJSON"]):
        grid = panel["gridData"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in cells) < 48
        assert not cells & taken
        taken |= cells
    assert len(taken) == 48 * (max(y for _, y in taken) + 1), "a hole"


def test_the_same_pipeline_gives_the_same_bytes() -> None:
    text = EXAMPLES["turbine-health"]
    assert as_ndjson(kibana_objects(pipeline_of(text))) == as_ndjson(kibana_objects(pipeline_of(text)))
    assert as_ndjson(kibana_objects(pipeline_of(text))).count("\n") == 7


def end_of_export(monkeypatch: pytest.MonkeyPatch, file: Path) -> int | None:
    """The exit code of `strandline kibana export`."""
    monkeypatch.setattr(sys, "argv", ["strandline", "kibana", "export", str(file)])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert not isinstance(ended.value.code, str)
    return ended.value.code


@pytest.mark.parametrize("job", FILES)
def test_the_dashboards_of_the_examples_are_what_the_command_makes(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not end_of_export(monkeypatch, ROOT / FILES[job])
    made = capsys.readouterr().out
    kept = ROOT / "examples" / "kibana" / f"{job}.ndjson"
    assert made == kept.read_text(), f"export it again: strandline kibana export {FILES[job]} > {kept}"


def test_documents_link_to_what_the_api_says_of_them() -> None:
    """A result to its records in the log, a dead letter to its bytes; by routes that the API has."""
    plain = kibana_objects(pipeline_of(EXAMPLES["turbine-health"]))
    linked = kibana_objects(pipeline_of(EXAMPLES["turbine-health"]), "https://farm.example/strandline/")
    assert "farm.example" not in as_ndjson(plain)
    assert [one["id"] for one in linked] == [one["id"] for one in plain]
    found = {
        (one["attributes"]["title"], name): format_["params"]["urlTemplate"]
        for one in linked
        if one["type"] == "index-pattern"
        for name, format_ in json.loads(one["attributes"]["fieldFormatMap"]).items()
        if format_["id"] == "url"
    }
    assert found == {
        (alias, "_id"): f"https://farm.example/strandline/v1/results/{alias}/{{{{value}}}}/records"
        for alias in ("turbine-minute", "turbine-hour")
    } | {
        ("turbine-health.dead-letters", "number"): (
            "https://farm.example/strandline/v1/jobs/turbine-health/dead-letters/{{value}}"
        )
    }
    paths = {re.sub(r"\{\w+\}", "[^/]+", path) for path in api_description()["paths"]}
    for url in found.values():
        path = url.removeprefix("https://farm.example/strandline")
        assert any(re.fullmatch(one, path) for one in paths), path
    shown = {one["id"]: one["attributes"]["columns"] for one in linked if one["type"] == "search"}
    assert shown["strandline-turbine-hour-results"][-1] == "_id"


def test_a_file_without_a_pipeline_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stream.yaml").write_text("stream: things\nschema: {n: long}\n")
    assert end_of_export(monkeypatch, tmp_path / "stream.yaml") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "the file contains no pipeline" in said.err


def test_the_time_is_the_windows_start_and_sums_of_windows_that_overlap_are_not_added_up() -> None:
    pipeline = pipeline_of(SLIDING)
    tumbling = [
        panel
        for panel in panels(kibana_objects(pipeline_of(EXAMPLES["turbine-health"])))
        if not panel.alias.endswith(".dead-letters")
    ]
    assert {panel.time_field for panel in tumbling} == {"window.start"}
    done = {
        (column["sourceField"], column["operationType"])
        for panel in tumbling
        for column in panel.columns.values()
        if not column["isBucketed"]
    }
    assert done == {
        ("___records___", "count"),
        ("n", "sum"),
        ("load", "average"),
        ("peak", "max"),
        ("wind", "average"),
        ("temperature", "max"),
    }
    first = pipeline.stages[0]
    assert (first.size_ms, first.every_ms) == (60_000, 20_000)
    assert {column.name for column in first.aggregates} >= {"n", "total"}
    overlapping = panels(kibana_objects(pipeline))
    assert "sum" not in {c["operationType"] for panel in overlapping for c in panel.columns.values()}


def test_a_job_that_emits_to_no_index_has_nothing_to_show_but_its_dead_letters() -> None:
    assert saved_objects("job", [], has_dead_letters=False) == []
    objects = saved_objects("job", [], has_dead_letters=True)
    assert [one["type"] for one in objects] == ["index-pattern", "search", "dashboard"]
    found = list(panels(objects))
    assert {(panel.alias, panel.time_field) for panel in found} == {("job.dead-letters", "@timestamp")}
    assert [fault for panel in found for fault in faults(panel, DEAD_LETTER_MAPPING)] == []


def test_dead_letters_stand_beside_the_results_of_a_job_that_has_them_in_an_index() -> None:
    text = EXAMPLES["turbine-health"]
    with_them = {panel.alias for panel in panels(kibana_objects(pipeline_of(text)))}
    without = {
        panel.alias for panel in panels(kibana_objects(pipeline_of(text.replace("index: true", "index: false"))))
    }
    assert with_them - without == {"turbine-health.dead-letters"}
