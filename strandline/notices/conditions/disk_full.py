"""Condition `disk_full`: the disk of the leading control service is close to its limit."""

from __future__ import annotations

import shutil
import socket

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.errors import StackError
from strandline.notices.finding import Finding, Sight
from strandline.notices.options import Share
from strandline.notices.view import View


class DiskFullSpec(DocumentModel):
    """Limit of the use of a disk."""

    above: Share = Field(default=0.9, json_schema_extra={"default": "90%"})
    """Share of the disk that may be used."""


class Fields(DocumentModel):
    disk_full: DiskFullSpec | None = None
    """The disk with the data directory of the leading control service is close to its limit: `{above: 90%}`."""


def look(options: DiskFullSpec, view: View) -> Sight:
    """Check the disk with the data directory."""
    directory = view.surroundings.data_dir
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        raise StackError(f"can't examine the disk with {directory}: {error.strerror}") from error
    share = (usage.total - usage.free) / usage.total
    host = socket.gethostname()
    subject = f"disk of {host} with {directory}"
    finding = Finding(
        subject=subject,
        title=f"The disk of machine {host} with {directory} is {share:.0%} full",
        reason=f"{usage.free / 1e9:,.1f} GB of {usage.total / 1e9:,.1f} GB are free.",
        affected=(
            "If the disk becomes full, jobs on this machine stop, and gateways here can't spool. In the embedded stack, Kafka "
            "and Elasticsearch stop too."
        ),
        action=(
            f"du -xh --max-depth=2 {directory} | sort -h | tail -20\n"
            "Shorten the retention of streams (retention: in their documents, then strandline apply FILE), delete old "
            "results, or enlarge the disk."
        ),
    )
    return Sight(holding={subject: finding} if share > options.above else {})
