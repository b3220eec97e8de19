"""The program that poisons jobs of a pool finds results that are late because of other jobs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from strandline.ledger.ledger import Ledger
from tests.fault.pool_poison import batches_late, waits_of
from tests.support.ledgers import a_checkpoint, a_slice

END_MS = 100_000


def with_batches(path: Path, planned_ms: list[int]) -> str:
    """Return a ledger in which a poisoned job has a slice in each of these batches, and a healthy job closes its window in the
    last one."""
    url = f"sqlite:///{path / 'ledger.sqlite'}"
    with closing(Ledger.open(url)) as ledger:
        for job in ("healthy", "poisoned"):
            ledger.submit_job(job, "", {"pipeline": job})
            ledger.begin_run(job, pid=1)
        for number, at_ms in enumerate(planned_ms, 1):
            ledger.plan_slice(a_slice(number, job="poisoned", planned_ms=at_ms))
            ledger.commit_checkpoint(a_checkpoint(number, job="poisoned"))
        ledger.plan_slice(a_slice(1, job="healthy", planned_ms=planned_ms[-1]))
        ledger.commit_checkpoint(a_checkpoint(1, job="healthy", emitted={"tens": END_MS}))
    return url


@pytest.mark.parametrize(("waited_s", "expected"), [
    (0.0, 0),  # the job waited for its records, and the batches of the other job delayed nothing
    (0.1, 0),  # it became due during the batch before its own
    (0.65, 2),
    (0.95, 3),  # the other job delays it
    (9.0, 4),
])  # fmt: skip
def test_only_batches_that_run_while_a_slice_is_due_delay_its_result(
    tmp_path: Path, waited_s: float, expected: int
) -> None:
    url = with_batches(tmp_path, [102_000, 102_300, 102_600, 102_900, 103_200])
    assert batches_late(url, {"healthy": {1: waited_s}}, from_ms=END_MS - 1) == [expected]
    assert batches_late(url, {"healthy": {1: waited_s}}, from_ms=END_MS) == [], "the window ended before"


def test_the_waits_of_slices_are_read_from_the_log_of_a_job(tmp_path: Path) -> None:
    log = tmp_path / "runner-healthy.log"
    log.write_text(
        "2026-11-30T12:00:00Z [info     ] member joined                  epoch=1 job=healthy\n"
        "2026-11-30T12:00:01Z [info     ] slice committed                epoch=1 job=healthy records=20 seconds=0.2 slice=7 "
        "waited=1.25\n"
    )
    assert waits_of(log) == {7: 1.25}
