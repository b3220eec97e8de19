"""Remaining capacity of the machines of control services, from the readings that each service records in the ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from strandline.core.described import Described
from strandline.ledger.notices import ReadingsRow
from strandline.ledger.roles import NoticeLedger
from strandline.notices.readings import CURRENT_MS, LOST_MS


@dataclass(frozen=True)
class MachineView(Described):
    """A machine with a control service."""

    service: str
    """Name of the control service."""
    host: str
    read_ms: int
    """Time of the readings."""
    is_current: bool
    """False if the readings are old, because the service is away or hangs."""
    cores: int | None
    """Number of cores that the service can use. Null if it is unknown, as all others below."""
    load: float | None
    """Mean number of processes that ran or waited for a core, over the last minute."""
    memory_bytes: int | None
    memory_free_bytes: int | None
    """Memory that processes can get without swapping."""
    disk_directory: str | None
    """Data directory of the service."""
    disk_bytes: int | None
    """Size of the disk with this directory."""
    disk_free_bytes: int | None
    problem: str
    """Reason why the disk could not be examined. Empty if it was."""


@dataclass(frozen=True)
class MachineList(Described):
    """Machines with a control service, by the name of the service."""

    now_ms: int
    machines: list[MachineView]


def machines(ledger: NoticeLedger) -> MachineList:
    """Return the machines of all control services that recorded readings in the last day. Raises LedgerUnavailable."""
    now_ms = time.time_ns() // 1_000_000
    rows = [row for row in ledger.service_readings() if now_ms - row.at_ms < LOST_MS]
    return MachineList(now_ms, [_view(row, now_ms) for row in rows])


def _view(row: ReadingsRow, now_ms: int) -> MachineView:
    machine: dict[str, Any] = row.readings.get("machine", {})
    disk: dict[str, Any] = row.readings.get("disk", {})
    return MachineView(
        service=row.service,
        host=str(row.readings.get("host", "")),
        read_ms=row.at_ms,
        is_current=abs(now_ms - row.at_ms) <= CURRENT_MS,
        cores=machine.get("cores"),
        load=machine.get("load"),
        memory_bytes=machine.get("memory_bytes"),
        memory_free_bytes=machine.get("memory_free_bytes"),
        disk_directory=disk.get("directory"),
        disk_bytes=disk.get("total_bytes"),
        disk_free_bytes=disk.get("free_bytes"),
        problem=str(disk.get("error", "")),
    )
