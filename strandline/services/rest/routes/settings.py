"""Settings of this control service, without secrets."""

from __future__ import annotations

from fastapi import APIRouter

from strandline.services.rest.dependencies import Control
from strandline.services.rest.views import SettingList

router = APIRouter(tags=["health"])


@router.get("/v1/settings")
def list_settings(control: Control) -> SettingList:
    """Return the settings of this control service: value, source, and meaning. Of secrets, only whether they are set."""
    return SettingList(settings=[*control.settings()])
