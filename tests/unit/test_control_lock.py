"""The lock on a control service's data directory, and the name that is kept in it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from strandline.core.errors import StackError
from strandline.services.control import LOCK_FILE, ControlSettings, _address, _only_one


def test_a_service_keeps_its_name_over_a_restart(tmp_path: Path) -> None:
    with _only_one(tmp_path) as first:
        assert first.startswith(f"{socket.gethostname()}-")
    with _only_one(tmp_path) as second:
        assert second == first


def test_two_directories_are_two_names(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "other"]
    for place in places:
        place.mkdir()
    with _only_one(places[0]) as one, _only_one(places[1]) as other:
        assert one != other


def test_a_directory_that_was_copied_from_another_machine_gets_a_new_name(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("elsewhere-1a2b3c4d")
    with _only_one(tmp_path) as name:
        assert name != "elsewhere-1a2b3c4d"
    with _only_one(tmp_path) as again:
        assert again == name


def test_a_second_service_in_one_directory_is_refused(tmp_path: Path) -> None:
    with _only_one(tmp_path), pytest.raises(StackError, match="another control service uses"), _only_one(tmp_path):
        pass


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("::1", "http://[::1]:8080"),
        ("0.0.0.0", f"http://{socket.gethostname()}:8080"),
    ],
)
def test_the_address_is_where_others_reach_it(host: str, address: str) -> None:
    assert _address(ControlSettings(control_host=host, control_port=8080)) == address
