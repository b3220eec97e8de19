"""Waits between two looks are shorter here: the tests of the looks themselves set their own times."""

from __future__ import annotations

import pytest

from strandline.example import carriers
from strandline.services import client
from strandline.services.supervision import backfill_jobs


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POLL_S", 0.02)
    monkeypatch.setattr(backfill_jobs, "POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(carriers, "RETRY_S", 0.05)
