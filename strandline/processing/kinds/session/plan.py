"""The plan of sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.core.documents import Path
from strandline.core.times.durations import format_duration
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.kinds.windows.window_plan import Argument, WindowForm, WindowPlan
from strandline.processing.pipelines.calendars import longer_ms_max
from strandline.processing.pipelines.stages import Stage


class SessionPlan(WindowPlan):
    """Sessions begin and end with records."""

    why_no_offset = "sessions begin with a record; remove it"
    forms = (
        WindowForm(
            "session",
            "session",
            (Argument("gap", "gap"), Argument("max", "max", is_needed=False)),
            ("session", "gap", "max"),
            is_made_by_rows=True,
            has_partitions=True,
        ),
    )

    def shape(self, window: Any) -> SessionShape:
        return SessionShape(window.session.max, window.session.gap)

    def problems_after(self, window: Any, stage: Stage, before: Stage) -> Iterator[tuple[Path, str]]:
        """Yield a problem if the gap isn't longer than the time between results: then each result would be a session."""
        gap_ms, earlier = window.session.gap, before.windows.result_windows
        apart_ms = earlier.spacing_ms + (longer_ms_max(earlier.time_zone) if earlier.time_zone else 0)
        if not earlier.ends_move and gap_ms <= apart_ms:
            yield (
                ("session", "gap"),
                f"{format_duration(gap_ms)} of window '{stage.name}' must be longer than the "
                f"{format_duration(apart_ms)} from one window '{before.name}' to the next; else each of their results "
                "would be its own session",
            )


PLAN = SessionPlan()
