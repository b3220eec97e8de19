"""A pool of several jobs names each feature that it doesn't run, before the run of the job begins."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.run.pool_features import NotForPool, require_pool_runs


def a_document(emit: dict[str, Any], **more: Any) -> PipelineSpec:
    window = {"name": "tens", "tumbling": "10s", "aggregate": {"n": "count(*)"}}
    steps = [{"window": window, "emit": [emit]}]
    event_time = {"field": "ts", "delay": "1s"}
    return PipelineSpec.from_document(
        {"pipeline": "p", "input": {"stream": "s"}, "event_time": event_time, "steps": steps, **more}
    )


@pytest.mark.parametrize(("emit", "more", "named"), [
    ({"stream": "results"}, {}, "emit: stream"),
    ({"elasticsearch": "tens"}, {"recovery": "snapshot"}, "recovery: snapshot"),
    ({"elasticsearch": {"name": "tens", "updates": "10s"}}, {}, "updates of open windows"),
])  # fmt: skip
def test_a_feature_that_a_pool_does_not_run_is_named(emit: dict[str, Any], more: dict[str, Any], named: str) -> None:
    with pytest.raises(NotForPool, match=f"job p can't run in a pool: a pool doesn't run {named} yet"):
        require_pool_runs(a_document(emit, **more))


def test_a_job_with_documents_of_closed_windows_runs_in_a_pool() -> None:
    require_pool_runs(a_document({"elasticsearch": "tens"}))
