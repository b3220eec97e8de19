"""The remaining capacity of the machines with a control service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.ledger.ledger import Ledger
from strandline.notices.readings import take_readings
from tests.support.control import Api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def test_each_machine_reports_its_cores_memory_and_disk(api: Api, tmp_path: Path) -> None:
    assert api.ask("GET", "/v1/machines").json()["machines"] == []
    api.ledger.record_readings("north-1", take_readings(tmp_path, {}))
    [found] = api.ask("GET", "/v1/machines").json()["machines"]
    assert (found["service"], found["is_current"], found["problem"]) == ("north-1", True, "")
    assert found["cores"] >= 1
    assert 0 < found["memory_free_bytes"] < found["memory_bytes"]
    assert 0 < found["disk_free_bytes"] < found["disk_bytes"]
    assert found["disk_directory"] == str(tmp_path)


def test_a_disk_that_can_not_be_read_leaves_the_rest(api: Api, tmp_path: Path) -> None:
    api.ledger.record_readings("north-1", take_readings(tmp_path / "missing", {}))
    [found] = api.ask("GET", "/v1/machines").json()["machines"]
    assert (found["disk_free_bytes"], found["problem"]) == (None, "No such file or directory")
    assert found["cores"] >= 1
