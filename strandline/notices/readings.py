"""Readings of control services about their own machines: cores, memory, the disk of the data directory, and certificates.

Only a process on a machine can examine the machine's disk and files. So each control service records its readings in the
ledger, and the leader checks the readings of all. The readings of a service are

* current if they are at most CURRENT_MS old: conditions are based on them;
* old after that, because the service is away or hangs: its problems stay unchanged, neither new nor over;
* lost after LOST_MS: its problems end, and the message says that their state is unknown.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from strandline.ledger.notices import ReadingsRow
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import View, show_time

CURRENT_MS = 120_000
"""Maximum age of current readings. A service records them every 30 seconds."""
LOST_MS = 86_400_000
"""Age from which the state of a service's machine counts as unknown for good."""
Age = Literal["current", "old", "lost"]


@dataclass(frozen=True)
class Reading:
    """One examined object of a control service's machine."""

    service: str
    host: str
    """Name of the machine."""
    age: Age
    at_ms: int
    facts: Mapping[str, Any]
    """The entry that `take_readings` made. It has `error` if the object could not be examined."""

    @property
    def is_known(self) -> bool:
        return self.age == "current" and "error" not in self.facts

    @property
    def is_lost(self) -> bool:
        return self.age == "lost"

    @property
    def lost_reason(self) -> str:
        """Reason for the message about a lost state."""
        return (
            f"Control service {self.service} on machine {self.host} has reported nothing since {show_time(self.at_ms)}, so "
            "the current state is unknown. If the service still has to run, start it; a remaining problem is then reported "
            "again."
        )


def take_readings(data_dir: Path, certificates: Mapping[str, Path]) -> dict[str, Any]:
    """Examine this machine. `certificates`: setting -> file. An object that can't be examined has an `error`."""
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "disk": _disk(data_dir),
        "certificates": [
            {"setting": setting, "path": str(path.absolute())} | _certificate(path)
            for setting, path in certificates.items()
        ],
    }


def unread(readings: Mapping[str, Any]) -> list[str]:
    """Return a line for each object that could not be examined."""
    entries = [readings["disk"], *readings["certificates"]] if "disk" in readings else []
    return [
        f"{one.get('setting', 'the disk with')} {one.get('path') or one['directory']}: {one['error']}"
        for one in entries
        if "error" in one
    ]


def disks(view: View) -> Iterator[Reading]:
    """Return the disk of each control service."""
    for row in view.ledger.service_readings():
        if "disk" in row.readings:
            yield _reading(view, row, row.readings["disk"])


def certificates(view: View) -> Iterator[Reading]:
    """Return the certificates of all control services."""
    for row in view.ledger.service_readings():
        for entry in row.readings.get("certificates", ()):
            yield _reading(view, row, entry)


def sight_of(
    readings: Iterable[Reading], subject_of: Callable[[Reading], str], find: Callable[[str, Reading], Finding | None]
) -> Sight:
    """Return the result of a check of readings. `find`: returns the problem of a current reading with this subject, or None."""
    holding, unknown, lost = {}, set(), {}
    for reading in readings:
        subject = subject_of(reading)
        if reading.is_lost:
            lost[subject] = reading.lost_reason
        elif not reading.is_known:
            unknown.add(subject)
        elif (finding := find(subject, reading)) is not None:
            holding[subject] = finding
    return Sight(holding=holding, unknown=frozenset(unknown), lost=lost)


def _reading(view: View, row: ReadingsRow, facts: Mapping[str, Any]) -> Reading:
    age_ms = view.now_ms - row.at_ms
    # After the database's clock was set back, the time of readings is in the future until the service records them again.
    age: Age = "lost" if age_ms >= LOST_MS else "old" if abs(age_ms) > CURRENT_MS else "current"
    return Reading(row.service, str(row.readings.get("host", "")), age, row.at_ms, facts)


def _machine() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "memory_bytes": memory.total,
        "memory_free_bytes": memory.available,
    }


def _disk(directory: Path) -> dict[str, Any]:
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        return {"directory": str(directory), "error": error.strerror or str(error)}
    return {"directory": str(directory), "total_bytes": usage.total, "free_bytes": usage.free}


def _certificate(path: Path) -> dict[str, Any]:
    # The import takes long, and most control services have no certificate.
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return {"error": str(error)}
    return {"expires_ms": int(certificate.not_valid_after_utc.timestamp() * 1_000)}
