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


def test_a_feature_that_a_pool_does_not_run_is_named() -> None:
    with pytest.raises(NotForPool, match="job p can't run in a pool: a pool doesn't run recovery: snapshot yet"):
        require_pool_runs(a_document({"elasticsearch": "tens"}, recovery="snapshot"))


def test_a_job_with_its_own_runner_does_not_join_a_pool() -> None:
    with pytest.raises(NotForPool, match="job p can't run in a pool: its document has placement: own"):
        require_pool_runs(a_document({"elasticsearch": "tens"}, placement="own"))


@pytest.mark.parametrize("emit", [
    {"elasticsearch": "tens"},
    {"elasticsearch": {"name": "tens", "updates": "10s"}},
    {"stream": "results"},
    {"files": {"path": "/tens"}},
    {"sql": {"table": "tens"}},
])  # fmt: skip
def test_a_pool_runs_each_kind_of_emission(emit: dict[str, Any]) -> None:
    require_pool_runs(a_document(emit))
