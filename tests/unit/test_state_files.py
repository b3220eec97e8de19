"""The state of a member as files: repeated tasks, damage, and states that are no longer needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import StrandlineError
from strandline.processing.emission.state_files import HeldState, StateFiles


def kept(directory: Path) -> set[str]:
    return {one.name for one in directory.iterdir()}


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "states")
    files.write(3, b"three", None)
    assert files.read(3) == HeldState(3, None, b"three")
    files.write(7, b"seven", files.read(3))
    assert files.read(7) == HeldState(7, 3, b"seven")


def test_the_state_before_stays_until_the_next_slice_has_its_state(tmp_path: Path) -> None:
    """A task that is repeated finds the state before its slice, and gives the same file."""
    files = StateFiles(tmp_path)
    files.write(3, b"three", None)
    for _ in range(2):
        files.write(4, b"four", files.read(3))
        assert kept(tmp_path) == {"3", "4"}
    for _ in range(2):
        files.write(5, b"five", files.read(4))
        assert kept(tmp_path) == {"4", "5"}


@pytest.mark.parametrize("number", [0, 9, 20, -1])
def test_a_damaged_state_ends_the_run(number: int, tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    files.write(1, b"a state", None)
    path = tmp_path / "1"
    content = bytearray(path.read_bytes())
    content[number] ^= 1
    path.write_bytes(content)
    with pytest.raises(StrandlineError, match=r"is damaged: .* the job rewinds"):
        files.read(1)


@pytest.mark.parametrize("size", [0, 10, 30])
def test_a_state_that_was_cut_ends_the_run(size: int, tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    files.write(1, b"a state", None)
    (tmp_path / "1").write_bytes((tmp_path / "1").read_bytes()[:size])
    with pytest.raises(StrandlineError, match="is damaged"):
        files.read(1)


def test_the_state_of_another_slice_is_not_taken(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    files.write(1, b"a state", None)
    (tmp_path / "1").rename(tmp_path / "2")
    with pytest.raises(StrandlineError, match="is damaged"):
        files.read(2)


def test_a_state_that_is_missing_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(StrandlineError, match=r"can't be read: .* the job rewinds"):
        StateFiles(tmp_path).read(1)
