"""The digest of a pipeline says whether a snapshot, or a result to be revised, can still be used. Only what the state depends on
may change it: an unrelated edit of the document may not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.documents import read_documents
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

EXAMPLES = Path(__file__).parents[2] / "examples"
Documents = list[dict[str, Any]]


def pipelines() -> Iterator[tuple[str, str]]:
    """(file, pipeline) of each example whose lookups need no server."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        documents = documents_of(path.name)
        if not any("lookup" in one for one in documents):
            yield from ((path.name, one["pipeline"]) for one in documents if "pipeline" in one)


def documents_of(file: str) -> Documents:
    return [one.data for one in read_documents((EXAMPLES / file).read_bytes(), file)]


def checked(documents: Documents, pipeline: str) -> CheckedPipeline:
    return read_pipeline(yaml.safe_dump_all(documents, sort_keys=False).encode(), "test", pipeline)


def spec_of(documents: Documents, pipeline: str) -> dict[str, Any]:
    return next(one for one in documents if one.get("pipeline") == pipeline)


def reversed_keys(found: dict[str, Any]) -> None:
    for name in reversed(list(found)):
        found[name] = found.pop(name)


def reorder_fields(documents: Documents, spec: dict[str, Any]) -> None:
    for step in spec["steps"]:
        for name in ("window", "join"):
            reversed_keys(step.get(name, {}))
        reversed_keys(step)
    reversed_keys(spec)


def add_a_sink(documents: Documents, spec: dict[str, Any]) -> None:
    for number, step in enumerate(spec["steps"]):
        if "emit" in step:
            step["emit"].append({"elasticsearch": f"another-{number}"})


def change_the_settings_of_indices(documents: Documents, spec: dict[str, Any]) -> None:
    for step in spec["steps"]:
        for emit in step.get("emit", []):
            if isinstance(emit.get("elasticsearch"), str):
                emit["elasticsearch"] = {"name": emit["elasticsearch"], "shards": 2}


def emit_records_first(documents: Documents, spec: dict[str, Any]) -> None:
    if "input" in spec and not isinstance(spec.get("late"), dict):
        spec["steps"].insert(0, {"emit": [{"elasticsearch": "all-records"}], "name": "all_records"})


def wait_longer(documents: Documents, spec: dict[str, Any]) -> None:
    for read in [spec, *spec.get("inputs", [])]:
        if "event_time" in read:
            read["event_time"] |= {"delay": "11s", "idle_timeout": "2m"}


def treat_errors_otherwise(documents: Documents, spec: dict[str, Any]) -> None:
    spec |= {"on_error": "crash", "checkpoint": {"every": "7s"}, "dead_letters": {"index": True}}


def declare_another_field(documents: Documents, spec: dict[str, Any]) -> None:
    for one in documents:
        if "stream" in one:
            one["schema"]["not_used_by_any_step"] = "string?"


EDITS: list[Callable[[Documents, dict[str, Any]], None]] = [
    reorder_fields,
    add_a_sink,
    change_the_settings_of_indices,
    emit_records_first,
    wait_longer,
    treat_errors_otherwise,
    declare_another_field,
]


@pytest.mark.parametrize(("file", "pipeline"), list(pipelines()))
def test_harmless_edits_of_the_examples_keep_the_digest(file: str, pipeline: str) -> None:
    before = documents_of(file)
    digest, was_edited = checked(before, pipeline).digest, set[str]()
    for edit in EDITS:
        after = copy.deepcopy(before)
        edit(after, spec_of(after, pipeline))
        assert checked(after, pipeline).digest == digest, edit.__name__
        was_edited |= {edit.__name__} if str(after) != str(before) else set()
    assert {"reorder_fields", "wait_longer", "treat_errors_otherwise", "declare_another_field"} <= was_edited


@pytest.mark.parametrize(("file", "pipeline"), list(pipelines()))
def test_an_edit_of_what_a_stage_computes_changes_the_digest(file: str, pipeline: str) -> None:
    before = documents_of(file)
    after = copy.deepcopy(before)
    steps = spec_of(after, pipeline)["steps"]
    windows = [step["window"] for step in steps if "window" in step]
    joins = [step["join"] for step in steps if "join" in step]
    if not windows and not joins:
        pytest.skip("it keeps no state")
    for window in windows:
        window["aggregate"]["one_more"] = "count(*)"
    for join in joins:
        join["type"] = "left" if join.get("type", "inner") == "inner" else "inner"
    assert checked(after, pipeline).digest != checked(before, pipeline).digest


def test_the_position_of_a_step_is_not_a_part_of_an_identity() -> None:
    text = (EXAMPLES / "branches.yaml").read_text(encoding="utf-8")
    moved = text.replace("  - derive:", "  - emit: [{elasticsearch: raw}]\n    name: raw\n  - derive:", 1)
    before, after = (read_pipeline(one.encode(), "test") for one in (text, moved))
    assert [stage.number for stage in before.stages] == [1, 2, 3]
    assert [stage.number for stage in after.stages] == [2, 3, 4]
    assert [stage.identity for stage in before.stages] == [stage.identity for stage in after.stages]
    assert before.identity != after.identity, "it emits more"
    assert len(read_documents(moved, "test")) == 2
