"""One threshold: what a slice closes is recorded with its checkpoint, the rule of event time and its facts with the slice.

Old rows are carried over so that every job goes on where it was:

* A checkpoint's `closes_ms` is what its slice said. A slice that is planned and not committed has none yet, and gets it at its
  commit by the new rule, which is never less: it is at least the watermark in force, and the old value was at most that. Results
  of it that are out already are of windows up to the old value, so the run that takes it over finds them and adds the others.
* Every slice gets the rule of its version. Until here the rule was `newest`: the latest event of all partitions counted.
* `reached` is known for no partition. A job's last checkpoint, and a slice planned after it, get the job's latest event time for
  every partition that its slices show to have held records. The least over them is then that event time, so the next watermark is
  the one that the old rule would have given: nothing is late that would not have been late before, and no value falls. From the
  next slices on each partition counts by itself. No older row is filled, because nothing reads it: replays take the recorded
  watermark and `closes_ms`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_AHEAD_MS = 300_000
"""What a document means that doesn't say it."""


def upgrade() -> None:
    for column in ("rule", "reached", "silence_ms"):
        op.add_column("slices", sa.Column(column, sa.Text, nullable=False, server_default="{}"))
    op.add_column("checkpoints", sa.Column("closes_ms", sa.BigInteger, nullable=True))
    op.add_column("checkpoints", sa.Column("reached", sa.Text, nullable=False, server_default="{}"))
    connection = op.get_bind()
    connection.execute(
        sa.text(
            "UPDATE checkpoints SET closes_ms = (SELECT slices.closes_ms FROM slices"
            " WHERE slices.job = checkpoints.job AND slices.number = checkpoints.slice)"
        )
    )
    for job, version, document in connection.execute(sa.text("SELECT job, version, document FROM job_versions")).all():
        connection.execute(
            sa.text("UPDATE slices SET rule = :rule WHERE job = :job AND version = :version"),
            {"rule": json.dumps(_rule(json.loads(document))), "job": job, "version": version},
        )
    for (job,) in connection.execute(sa.text("SELECT name FROM jobs")).all():
        _fill_reached(connection, job)


def downgrade() -> None:
    op.drop_column("checkpoints", "reached")
    op.drop_column("checkpoints", "closes_ms")
    for column in ("silence_ms", "reached", "rule"):
        op.drop_column("slices", column)


def _rule(document: dict[str, Any]) -> dict[str, Any]:
    said = document.get("event_time", {})
    return {
        "delay_ms": _duration_ms(said.get("delay")) or 0,
        "idle_timeout_ms": _duration_ms(said.get("idle_timeout")),
        "max_ahead_ms": _duration_ms(said["max_ahead"]) if "max_ahead" in said else _MAX_AHEAD_MS,
        "watermark": "newest",
    }


def _duration_ms(text: str | None) -> int | None:
    if text is None:
        return None
    return sum(int(number) * _UNIT_MS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h|d)", text))


def _fill_reached(connection: sa.Connection, job: str) -> None:
    """Of the job's last checkpoint, and of a slice that was planned after it."""
    latest = connection.execute(
        sa.text("SELECT slice, latest_event_ms FROM checkpoints WHERE job = :job ORDER BY slice DESC LIMIT 1"),
        {"job": job},
    ).first()
    if latest is None or latest.latest_event_ms is None:
        return
    of_job = sa.text("SELECT offsets_first, offsets FROM slices WHERE job = :job AND number = :number")
    starts = json.loads(connection.execute(of_job, {"job": job, "number": 1}).one().offsets_first)
    ends = json.loads(connection.execute(of_job, {"job": job, "number": latest.slice}).one().offsets)
    reached = {
        stream: {
            partition: latest.latest_event_ms
            for partition, end in partitions.items()
            if end > starts.get(stream, {}).get(partition, 0)
        }
        for stream, partitions in ends.items()
    }
    values = {"reached": json.dumps(reached), "job": job, "slice": latest.slice}
    connection.execute(sa.text("UPDATE checkpoints SET reached = :reached WHERE job = :job AND slice = :slice"), values)
    connection.execute(sa.text("UPDATE slices SET reached = :reached WHERE job = :job AND number > :slice"), values)
