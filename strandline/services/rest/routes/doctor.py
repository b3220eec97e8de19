"""The doctor, and the remaining capacity of machines."""

from __future__ import annotations

from fastapi import APIRouter

from strandline.services.jobs.examinations import ExaminationView
from strandline.services.jobs.machines import MachineList, machines
from strandline.services.rest.dependencies import Control

router = APIRouter(tags=["health"])


@router.post("/v1/doctor", status_code=202)
def start_examination(control: Control) -> ExaminationView:
    """Start an examination of servers, rights, versions, and the machine of this control service. While one runs, and for
    10 s after it, this changes nothing.
    """
    return control.examinations.start()


@router.get("/v1/doctor")
def show_examination(control: Control) -> ExaminationView:
    """Return the findings of the last examination, each with its remedy, and whether one runs."""
    return control.examinations.state()


@router.get("/v1/machines")
def list_machines(control: Control) -> MachineList:
    """Return the remaining capacity of each machine with a control service: cores, memory, and the disk of its data."""
    return machines(control.ledger)
