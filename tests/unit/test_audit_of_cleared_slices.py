"""An audit that runs for long, while the slices that it audits are removed from the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.errors import NotFound
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import AuditPlan, VersionSpan
from strandline.processing.audit.process import Audit
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.source.recorded_slices import recorded_tasks
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice

SLICES = 6


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    assert Api(opened).apply(BOTH).status_code == 200
    opened.begin_run("power", pid=1)
    for number in range(1, SLICES + 1):
        opened.plan_slice(a_slice(number))
        opened.commit_checkpoint(a_checkpoint(number))
    yield opened
    opened.close()


@pytest.fixture
def audit(ledger: Ledger, tmp_path: Path) -> Audit:
    settings = Settings(data_dir=tmp_path, ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    return Audit(settings, "power", EndRange())


def plan(pipeline: CheckedPipeline) -> AuditPlan:
    span = VersionSpan(1, pipeline, 1, 1, SLICES, {})
    return AuditPlan("power", EndRange(), (span,), 1, SLICES, SLICES, is_whole=True)


def differences(audit: Audit, of: AuditPlan) -> tuple[set[int], str]:
    """The slices that differ when no record is known, and what was not compared."""
    sentences, slice_held = audit._compare_event_times(of, {})
    found = {int(one.removeprefix("slice ").split(":")[0]) for one in sentences}
    return found, of.without_event_times_before(slice_held).incomplete


def test_event_times_of_slices_that_are_there_are_compared_and_the_rest_is_said(audit: Audit, ledger: Ledger) -> None:
    of = plan(audit._load(1))
    assert differences(audit, of) == ({1, 2, 3, 4, 5, 6}, "")
    ledger.raise_floor("power", 1, 3, limit=9)
    found, incomplete = differences(audit, of)
    assert found == {4, 5, 6} and incomplete.startswith("event times of slices before 4 were not compared")


def test_slices_that_go_while_event_times_are_compared_are_left_out(
    audit: Audit, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, slices = plan(audit._load(1)), audit._ledger.slices

    def remove_and_read(job: str, first: int, last: int) -> object:
        ledger.raise_floor("power", 1, 3, limit=9)
        return slices(job, first, last)

    monkeypatch.setattr(audit._ledger, "slices", remove_and_read)
    found, incomplete = differences(audit, of)
    assert found == {4, 5, 6} and "before 4" in incomplete


def test_the_log_is_not_read_without_slices_that_have_just_gone(ledger: Ledger) -> None:
    assert recorded_tasks(ledger, "power", 1, 1, SLICES)
    ledger.raise_floor("power", 1, 3, limit=9)
    with pytest.raises(NotFound, match="have just been removed"):
        recorded_tasks(ledger, "power", 1, 1, SLICES)
