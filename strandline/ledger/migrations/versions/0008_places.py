"""Places: each alias and each stream of results has one stage that emits to it, by a primary key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from strandline.core.errors import Conflict

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "places",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_places_job"),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_places"),
    )
    connection = op.get_bind()
    present = sa.text(
        "SELECT jobs.name, job_versions.document FROM jobs JOIN job_versions"
        " ON job_versions.job = jobs.name AND job_versions.version = jobs.version ORDER BY jobs.created_ms, jobs.name"
    )
    owners: dict[tuple[str, str], tuple[str, str]] = {}
    for job, document in connection.execute(present).all():
        for stage, place in _places(json.loads(document)):
            owner, other = owners.setdefault(place, (job, stage))
            if (owner, other) != (job, stage):
                raise Conflict(
                    f"Stage {stage} of job {job} and stage {other} of job {owner} both emit to {place[0]} {place[1]}, which "
                    f"this release forbids: with the release before, apply pipeline {job} with another name there; then "
                    "start this one."
                )
    insert = sa.text("INSERT INTO places (kind, name, job, stage) VALUES (:kind, :name, :job, :stage)")
    for (kind, name), (job, stage) in owners.items():
        connection.execute(insert, {"kind": kind, "name": name, "job": job, "stage": stage})


def downgrade() -> None:
    op.drop_table("places")


def _places(document: dict[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(stage, (kind, name)) of each emission of a pipeline document."""
    for step in document.get("steps", []):
        for emit in step.get("emit") or []:
            for kind in ("elasticsearch", "stream"):
                if emit.get(kind) and step.get("window"):
                    yield step["window"]["name"], (kind, emit[kind])
