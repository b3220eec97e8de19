"""Condition `disk_full`: the disk of a control service is close to its limit."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.notices.finding import Finding, Sight
from strandline.notices.options import Share
from strandline.notices.readings import Reading, disks, sight_of
from strandline.notices.view import View


class DiskFullSpec(DocumentModel):
    """Limit of the use of a disk."""

    above: Share = Field(default=0.9, json_schema_extra={"default": "90%"})
    """Share of the disk that may be used."""


class Fields(DocumentModel):
    disk_full: DiskFullSpec | None = None
    """The disk with the data directory of a control service is close to its limit: `{above: 90%}`."""


def look(options: DiskFullSpec, view: View) -> Sight:
    """Check the disk with the data directory of each control service."""

    def find(subject: str, reading: Reading) -> Finding | None:
        return _finding(subject, reading) if _share(reading) > options.above else None

    return sight_of(disks(view), lambda reading: f"disk of control service {reading.service}", find)


def _share(reading: Reading) -> float:
    """Return the used share of the disk."""
    total, free = reading.facts["total_bytes"], reading.facts["free_bytes"]
    return float((total - free) / total)


def _finding(subject: str, reading: Reading) -> Finding:
    host, directory = reading.host, reading.facts["directory"]
    total, free = reading.facts["total_bytes"], reading.facts["free_bytes"]
    return Finding(
        subject=subject,
        title=f"The disk of machine {host} with {directory} is {_share(reading):.0%} full",
        reason=(
            f"{free / 1e9:,.1f} GB of {total / 1e9:,.1f} GB are free. Control service {reading.service} has its data there."
        ),
        affected=(
            f"If the disk becomes full, the jobs that run on {host} stop, and gateways there can't spool. In an embedded "
            "stack, Kafka and Elasticsearch stop too."
        ),
        action=(
            f"On machine {host}, find what uses the disk:\n"
            f'du -xh --max-depth=3 "$(stat -c %m {directory})" | sort -h | tail -20\n'
            f"Enlarge the disk, or delete files outside of {directory}. Never delete files in this directory. In an embedded "
            "stack, a shorter retention: in the documents of streams also frees space, after strandline apply FILE."
        ),
    )
