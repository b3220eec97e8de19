"""The states that a run has reached are found in its tables.

A campaign fails for each state that it names and did not reach.
"""

from __future__ import annotations

from typing import Any

import pytest

from strandline.core.failpoints import BACKFILL_FAILPOINTS, FAILPOINTS
from tests.fault.campaigns import CAMPAIGNS, PROMISED
from tests.fault.job_ladder import Outcome
from tests.support.chaos.checker import JobVerdict
from tests.support.chaos.states import STATES, missed, times_reached

EMPTY: dict[str, list[dict[str, Any]]] = {
    name: [] for name in ("slices", "checkpoints", "runs", "events", "job_versions", "backfills")
}


def begins(epoch: int, first: int, committed: int) -> dict[str, Any]:
    return {"kind": "run_begins", "epoch": epoch, "facts": {"slice_first": first, "slice_committed": committed}}


def reached(**tables: list[dict[str, Any]]) -> set[str]:
    return {name for name, times in times_reached([{**EMPTY, **tables}], {}).items() if times}


def test_a_takeover_in_a_rewind_is_a_run_that_replayed_and_committed_nothing():
    runs = [{"epoch": epoch, "version": 1} for epoch in (1, 2, 3)]
    committed = [{"slice": 1, "epoch": 1}, {"slice": 2, "epoch": 3}]
    assert reached(runs=runs, checkpoints=committed, events=[begins(2, 1, 1)]) == {"takeover-in-rewind"}
    assert reached(runs=runs, checkpoints=committed, events=[begins(2, 2, 1)]) == set(), "it had nothing to replay"
    assert reached(runs=runs, checkpoints=committed, events=[begins(3, 1, 1)]) == set(), "it committed"
    assert reached(runs=runs[:2], checkpoints=committed[:1], events=[begins(2, 1, 1)]) == set(), "no service took over"


def test_a_backfill_under_a_kill_is_one_that_was_completed_after_it():
    died = {"kind": "backfill_died", "epoch": 1, "facts": {"generation": 2}}
    for state, found in (("complete", {"backfill-under-kill"}), ("failed", set())):
        assert reached(events=[died], backfills=[{"generation": 2, "state": state}]) == found
    assert reached(events=[died], backfills=[{"generation": 3, "state": "complete"}]) == set()


def test_slices_that_change_hands():
    runs = [{"epoch": 1, "version": 1}, {"epoch": 2, "version": 2}]
    slices = [{"number": 1, "epoch": 1}, {"number": 2, "epoch": 1}]
    committed = [{"slice": 1, "epoch": 1}, {"slice": 2, "epoch": 2}]
    assert reached(runs=runs, slices=slices, checkpoints=committed) == {"version-takeover", "slice-by-two-runs"}
    assert reached(events=[{"kind": "slice_handed_on", "epoch": 1, "facts": {}}]) == {"slice-handed-over"}
    assert reached(events=[{"kind": "leader_changed", "epoch": 1, "facts": {}}]) == {"leader-change"}


def test_what_a_fault_noted_counts_and_each_job_counts():
    assert times_reached([EMPTY], {"kafka-holes": 2})["kafka-holes"] == 2
    handed = {**EMPTY, "events": [{"kind": "slice_handed_on", "epoch": 1, "facts": {}}]}
    assert times_reached([handed, EMPTY, handed], {})["slice-handed-over"] == 2


def test_a_state_that_was_missed_is_a_violation():
    outcome = Outcome(jobs={"chaos": JobVerdict()}, must_reach=frozenset({"kafka-holes", "ledger-behind"}))
    outcome.states = {"kafka-holes": 1, "ledger-behind": 0}
    (found,) = outcome.violations
    assert found.startswith("the state ledger-behind was not reached (a job failed because its ledger had lost slices")
    outcome.states["ledger-behind"] = 1
    assert outcome.violations == []
    assert missed(["birth-replayed"], {}) != []


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_campaign_names_states_and_failpoints_that_there_are(name: str):
    campaign = CAMPAIGNS[name]
    assert campaign.states and {*campaign.states, *PROMISED.values()} <= STATES.keys()
    assert {*campaign.failpoints} <= {*FAILPOINTS, *BACKFILL_FAILPOINTS}
