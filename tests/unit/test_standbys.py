"""Conditions for the start of a standby. `tests/integration/test_supervisor.py` tests its further life."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.services.processes.pids import PidFile
from strandline.services.supervision import standbys
from strandline.services.supervision.standbys import CALM_S, Standbys

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def test_no_standby_starts_in_the_look_in_which_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of that look are as they were before, all calm. The next standby would take from the run the cores that it needs
    to rebuild its state."""
    now_s = 0.0
    monkeypatch.setattr(standbys, "time", SimpleNamespace(monotonic=lambda: now_s))
    kept = Standbys(tmp_path, lambda *_: SLEEP, 1, pytest.fail)
    try:
        now_s += CALM_S
        kept.keep(is_calm=True)
        assert "standby-1" in PidFile(tmp_path).all()
        now_s += 1000.0
        runner = kept.take("power", 1)
        assert runner is not None
        kept.keep(is_calm=True)
        assert list(PidFile(tmp_path).all()) == ["runner-power"]
        now_s += CALM_S
        kept.keep(is_calm=True)
        assert "standby-2" in PidFile(tmp_path).all()
        runner.reap()
    finally:
        kept.close()


def test_no_standby_starts_in_the_look_in_which_a_run_starts_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(standbys, "time", SimpleNamespace(monotonic=lambda: now_s))
    kept = Standbys(tmp_path, lambda *_: SLEEP, 1, pytest.fail)
    try:
        now_s += CALM_S
        assert kept.take("power", 1) is None
        kept.keep(is_calm=True)
        assert not PidFile(tmp_path).all()
    finally:
        kept.close()
