"""The plan of a rewind."""

import pytest

from strandline.core.errors import LogTruncated
from strandline.processing.kinds.count.shape import CountShape
from strandline.processing.kinds.cumulative.shape import CumulativeShape
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.kinds.join.shape import JoinShape, SameWindowShape
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.pipelines.event_time import WindowShape, open_until, shape_of_records
from strandline.processing.slices.rewind import RewindPlan, plan_rewind, require_log_holds
from tests.support.ledgers import a_checkpoint

STAGES = {"minute": WindowShape(60_000, 60_000), "hour": WindowShape(3_600_000, 3_600_000)}


def never(event_ms):
    raise AssertionError(f"asked for the slice that reaches {event_ms}")


def checkpoint_row(closes_ms, number=90, emitted=None):
    return a_checkpoint(number, closes_ms=closes_ms, emitted=emitted or {})


def test_a_first_start_is_a_rewind_to_slice_one():
    assert plan_rewind(None, never, STAGES) == RewindPlan(1, 0, {}, None)


def test_nothing_closed_yet_replays_all():
    assert plan_rewind(checkpoint_row(None, 7), never, STAGES) == RewindPlan(1, 7, {}, None)


def test_the_longest_window_decides_how_far_back():
    emitted = {"minute": 7_260_000, "hour": 7_200_000}
    asked = []

    def reaching(event_ms):
        asked.append(event_ms)
        return 42

    plan = plan_rewind(checkpoint_row(7_265_000, emitted=emitted), reaching, STAGES)
    assert asked == [7_200_000]
    assert plan == RewindPlan(42, 90, emitted, 7_200_000)


def test_a_sliding_window_begins_before_the_last_one_ended():
    """Windows of 60 s every 5 s are emitted up to 7,265 s: the next one begins at 7,210 s. It goes into hours in turn, and their
    first one holds sliding windows that end after 7,200 s, of which the first begins at 7,145 s."""
    sliding = {"minute": WindowShape(60_000, 5_000)}
    emitted = {"minute": 7_265_000, "hour": 7_200_000}
    assert plan_rewind(checkpoint_row(7_267_000, emitted=emitted), lambda _: 1, sliding).reaches_back_to_ms == 7_210_000
    both = plan_rewind(checkpoint_row(7_267_000, emitted=emitted), lambda _: 1, STAGES | sliding)
    assert (both.emitted, both.reaches_back_to_ms) == (emitted, 7_145_000)


def test_a_version_with_other_windows_takes_over_where_all_were_closed():
    """The names of the former version's stages, and the sizes of their windows, mean nothing for the new ones."""
    before = checkpoint_row(7_265_000, emitted={"minute": 7_260_000, "gone": 7_265_000})
    stages = {"minute": WindowShape(90_000, 90_000), "new": WindowShape(5_000, 5_000)}
    assert plan_rewind(before, lambda _: 42, stages).emitted == {"minute": 7_200_000, "new": 7_265_000}


def test_what_a_version_with_longer_windows_had_not_emitted_is_the_next_ones():
    """Windows of 15 s were emitted up to 45 s and everything up to 52 s is closed.

    The window of 10 s up to 50 s isn't emitted yet, and its records must be replayed.
    """
    asked = []
    before = checkpoint_row(52_000, emitted={"short": 45_000})
    plan = plan_rewind(before, lambda ms: asked.append(ms) or 7, {"short": WindowShape(10_000, 10_000)})
    assert plan.emitted == {"short": 40_000}
    assert asked == [40_000]
    assert [plan.closed_ms(checkpoint_row(closes_ms, 90)) for closes_ms in (None, 39_000, 52_000)] == [
        None,
        39_000,
        40_000,
    ]
    assert plan.closed_ms(checkpoint_row(52_000, 91)) == 52_000, "the first new slice closes what was held open"


def test_no_open_window_replays_nothing():
    plan = plan_rewind(checkpoint_row(7_200_000), lambda _: None, STAGES)
    assert (plan.slice_first, plan.slice_committed) == (91, 90)


SECOND = WindowShape(1_000, 1_000)
MINUTE = WindowShape(60_000, 60_000)
SESSION, JOIN = SessionShape(30_000, 10_000), JoinShape(5_001, 1, before_ms=5_000, after_ms=2_000)
KEPT = {
    "tumbling": [MINUTE],
    "sliding": [WindowShape(60_000, 5_000)],
    "cumulative": [CumulativeShape(60_000, 10_000)],
    "days": [DayShape(86_400_000, 86_400_000, zone="Europe/Berlin")],
    "count": [CountShape(60_000, 1, count=3)],
    "session": [SESSION],
    "join": [JOIN],
    "latest": [JoinShape(7_201, 1, before_ms=7_200, is_latest=True)],
    "sessions of a join": [JOIN, SESSION],
    "minutes of sessions": [SESSION, MINUTE],
    "sessions of minutes": [MINUTE, SessionShape(900_000, 300_000)],
    "join of windows": [
        SECOND,
        WindowShape(1_000, 1_000, reads=(-1,)),
        SameWindowShape(1_000, 1, reads=(0, 1), of=SECOND),
    ],
}


def plan_at(shapes, closes_ms, latest_ms=7_234_567):
    """Return the plan with the last record at `latest_ms`, in slice 5, and windows closed up to `closes_ms` in slice
    90."""
    checkpoint = a_checkpoint(90, closes_ms=closes_ms, latest_event_ms=latest_ms, emitted={})
    stages = {str(at): shape for at, shape in enumerate(shapes)}
    return plan_rewind(checkpoint, lambda event_ms: 5 if event_ms <= latest_ms else None, stages)


@pytest.mark.guarantee(
    "G669",
    "A job whose windows are all closed starts and takes an upgrade even if retention has removed records. It reads "
    "nothing again if no record can still count. If a `dedupe` or a revision needs records, it reads no more than "
    "before.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize("shapes", KEPT.values(), ids=KEPT)
def test_where_all_windows_are_closed_no_start_reads_anything_again(shapes):
    """For example after a drain, and after silence: for any reach of the windows, and for any later records in the log."""
    ends_ms = open_until(shapes, 7_234_567)
    assert plan_at(shapes, ends_ms - 1).slice_first == 5, "something is open"
    assert plan_at(shapes, ends_ms).slice_first == 91
    assert plan_at(shapes, ends_ms + 3_600_000).slice_first == 91


@pytest.mark.parametrize(
    ("shape", "forgotten_ms"),
    [
        (WindowShape(60_000, 60_000, horizon_ms=600_000), 7_860_000),
        (WindowShape(60_000, 60_000, revise_ms=600_000), 7_860_000),
        (shape_of_records(600_000), 7_834_568),
    ],
    ids=["dedupe", "revise", "dedupe of records"],
)
def test_what_records_are_compared_with_and_results_that_are_revised_outlive_their_windows(shape, forgotten_ms):
    assert plan_at([shape], 7_260_000).slice_first == 5
    assert plan_at([shape], forgotten_ms - 1).slice_first == 5
    assert plan_at([shape], forgotten_ms).slice_first == 91


def test_a_job_of_which_no_record_was_accepted_has_nothing_to_read_again():
    row = a_checkpoint(90, closes_ms=None, latest_event_ms=None, emitted={})
    assert plan_rewind(row, never, STAGES) == RewindPlan(91, 90, {}, None)


@pytest.mark.guarantee(
    "G12",
    "A job never starts over a hole in the log.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_a_log_with_a_hole_stops_the_job():
    require_log_holds("j", {"s": {0: 10}}, {"s": {0: 10}})
    with pytest.raises(
        LogTruncated, match="partition 0 from offset 10, but the log starts at 11: retention removed 1 records"
    ):
        require_log_holds("j", {"s": {0: 10}}, {"s": {0: 11}})
    with pytest.raises(LogTruncated, match="no such partition"):
        require_log_holds("j", {"s": {3: 0}}, {"s": {0: 0}})
