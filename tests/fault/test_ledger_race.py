"""Two processes fight for one job; one is paused in the middle of its work and wakes too late. Epochs part them."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.core.errors import Fenced
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import SliceStatus
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.waiting import Patience, stretched, wait_until
from tests.support.warm_processes import WARM

FENCED_EACH = 10
SLICES_A_TURN = 4
TIMEOUT_S = 60
WORK_S = 0.005
"""Duration of a slice's own work, outside any transaction. SQLite excludes other writers while one writes continuously.
"""


def _advance(ledger: Ledger, epoch: int, effects: list[tuple[str, int, int]]) -> int:
    """Plan the next slice, unless one is left from before, and commit it. Returns its number."""
    last = ledger.last_slice("power")
    number = last.number if last and last.status is SliceStatus.PLANNED else (last.number if last else 0) + 1
    if last is None or last.number != number:
        ledger.plan_slice(a_slice(number, epoch))
        effects.append(("plan", number, epoch))
    time.sleep(WORK_S)  # sleeps: the work of a slice
    ledger.commit_checkpoint(a_checkpoint(number, epoch))
    effects.append(("commit", number, epoch))
    return number


def _shared(counts: Path) -> memoryview:
    """Two numbers in a file that processes share, each of which writes its own. (Python's own shared numbers and events
    ask for /dev/shm, which not every machine lets everybody use.)"""
    with counts.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("i")


def _contend(url: str, me: int, counts: Path, report: Path) -> None:
    """Take the job over; when fenced, let the other get on a little and take it back, until both were fenced enough."""
    fenced = _shared(counts)
    ledger = Ledger.open(url)
    effects: list[tuple[str, int, int]] = []
    patience = Patience("fenced often enough", TIMEOUT_S, poll_s=0.001)
    while min(fenced) < FENCED_EACH:
        epoch, number = ledger.begin_run("power", os.getpid()).epoch, 0
        try:
            while min(fenced) < FENCED_EACH:
                number = _advance(ledger, epoch, effects)
                patience.check((number, list(fenced)))
        except Fenced:
            fenced[me] += 1
            while min(fenced) < FENCED_EACH and ledger.slice_count("power") < number + SLICES_A_TURN:
                patience.check((ledger.slice_count("power"), list(fenced)))
                patience.pause()
    report.write_text(json.dumps(effects))
    ledger.close()


@pytest.mark.guarantee(
    "G11",
    "A run that was superseded writes no slice and no checkpoint.",
    promise="one-leader-and-one-run-write",
)
def test_two_processes_race_for_one_job(ledger_url: str, tmp_path: Path) -> None:
    """Every slice is planned once and committed once, epochs never fall, and the loser of each takeover is fenced."""
    ledger = Ledger.open(ledger_url)
    ledger.submit_job("power", "", {})
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(8))
    reports = [tmp_path / "one.json", tmp_path / "other.json"]
    contenders = [
        WARM.Process(target=_contend, args=(ledger_url, me, counts, report)) for me, report in enumerate(reports)
    ]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join(TIMEOUT_S + 30)
    assert [contender.exitcode for contender in contenders] == [0, 0]

    # The run that was fenced last can have planned a slice that the winner had no reason to finish.
    last: list[tuple[str, int, int]] = []
    _advance(ledger, ledger.begin_run("power", os.getpid()).epoch, last)

    effects = sorted([*last, *(tuple(effect) for report in reports for effect in json.loads(report.read_text()))])
    count = ledger.slice_count("power")
    slices = ledger.slices("power", 1, count)
    committed = ledger.checkpoints("power", limit=count + 1)[::-1]
    assert [row.number for row in slices] == list(range(1, count + 1))
    assert [row.slice for row in committed] == list(range(1, count + 1))
    assert effects == sorted(
        [("plan", row.number, row.epoch) for row in slices] + [("commit", row.slice, row.epoch) for row in committed]
    ), "what the processes believe that they did is what the ledger holds"
    history = [epoch for row, done in zip(slices, committed, strict=True) for epoch in (row.epoch, done.epoch)]
    assert all(before <= after for before, after in pairwise(history)), "no older run writes after a newer one"
    runs = ledger.runs("power")
    assert len(runs) > 2 * FENCED_EACH
    assert [run.epoch for run in runs] == list(range(1, ledger.job("power").epoch + 1))
    assert [run.epoch for run in runs if run.outcome is None] == [runs[-1].epoch]
    ledger.close()


def _hold(url: str, place: str, reached: Path, released: Path, report: Path) -> None:
    """Run until fenced. In the third slice, at `place`, report it and wait there, outside any transaction."""
    ledger = Ledger.open(url)
    epoch = ledger.begin_run("power", os.getpid()).epoch

    def come_to(here: str, number: int) -> None:
        if (here, number) == (place, 3):
            reached.touch()
            wait_until(released.exists, bool, "released", TIMEOUT_S, 0.001)

    try:
        for number in itertools.count(1):
            come_to("before planning", number)
            ledger.plan_slice(a_slice(number, epoch))
            come_to("before committing", number)
            ledger.commit_checkpoint(a_checkpoint(number, epoch))
    except Fenced as error:
        report.write_text(str(error))


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("place", ["before planning", "before committing"])
def test_a_run_that_was_paused_is_fenced_when_it_wakes(ledger_url: str, place: str, tmp_path: Path) -> None:
    """SIGSTOP in the middle of its work, a takeover, SIGCONT: not one more row comes from the old run.

    It is paused between two transactions: the locks of an open one would keep the takeover out until it goes on.
    """
    ledger = Ledger.open(ledger_url)
    ledger.submit_job("power", "", {})
    reached, released, report = tmp_path / "reached", tmp_path / "released", tmp_path / "report"
    old = WARM.Process(target=_hold, args=(ledger_url, place, reached, released, report))
    old.start()
    assert old.pid is not None
    wait_until(reached.exists, bool, f"in the third slice, {place}", TIMEOUT_S)
    os.kill(old.pid, signal.SIGSTOP)
    ledger.begin_run("power", os.getpid())
    before = ledger.last_slice("power"), ledger.last_checkpoint("power")
    released.touch()
    os.kill(old.pid, signal.SIGCONT)
    old.join(stretched(TIMEOUT_S))
    assert old.exitcode == 0
    assert "Run 1 of job power no longer owns it, run 2 does" in report.read_text()
    assert (ledger.last_slice("power"), ledger.last_checkpoint("power")) == before
    ledger.close()
