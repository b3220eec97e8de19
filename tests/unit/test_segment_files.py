"""The memory of a `dedupe`, as files in a checkpoint directory: shared by hard links, reused, damaged, removed."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from strandline.core.errors import StrandlineError
from strandline.processing.emission import segment_files
from strandline.processing.emission.segment_files import SegmentFiles
from strandline.processing.kinds.dedupe.step import Dedupe
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe import dedupe_state
from strandline.processing.operators.dedupe.dedupe_state import DedupeState, RecordHashes
from strandline.processing.operators.dedupe.duplicates import DuplicatesOperator
from strandline.processing.run.snapshots import link_tree

OPERATOR = DuplicatesOperator(Dedupe(0, ("id",), 60_000))


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe_state, "INLINE_ROWS_MAX", 10)
    monkeypatch.setattr(segment_files, "_opened", OrderedDict())


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_files, "_opened", OrderedDict())


def store_in(checkpoint: Path) -> SegmentFiles:
    return SegmentFiles.of(checkpoint, 1, 0)


def step(state: DedupeState, checkpoint: Path, second: int, first_id: int = 0) -> tuple[DedupeState, list[bool]]:
    """Fifty ids from `first_id` on, at this second, which closes all before it."""
    ids = np.arange(first_id, first_id + 50)
    rows = RecordHashes(ids, ids, np.full(50, second * 1_000_000))
    closing = Closing(max(0, second - 1) * 1000, second * 1000)
    after, duplicates = OPERATOR.step(state, rows, closing, store_in(checkpoint))
    return DedupeState.unpacked(*after.packed()), duplicates.tolist()


def files_in(checkpoint: Path) -> dict[str, Path]:
    return {one.name: one for one in (checkpoint / "segments/1/0").iterdir()}


def named(state: DedupeState) -> set[str]:
    return {one.name for one in state.segments if one.name is not None}


def test_what_is_remembered_lies_in_files_and_is_found_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = step(DedupeState(), tmp_path, 0)
    assert named(state) == files_in(tmp_path).keys() and len(named(state)) == 1
    assert sum(one.nbytes for one in state.packed()) < 200, "the state has its name"
    another_process(monkeypatch)
    assert step(state, tmp_path, 1, first_id=25)[1] == [True] * 25 + [False] * 25


@pytest.mark.guarantee("G602")
def test_a_state_is_taken_again_and_unused_files_go(tmp_path: Path) -> None:
    """A batch that is not committed is done again with the state before it: its segments are there yet, and get the same names.
    What nothing refers to any more is gone some steps later."""
    state = DedupeState()
    for second in range(30):
        again = step(state, tmp_path, second, first_id=second * 50)
        after = step(state, tmp_path, second, first_id=second * 50)
        assert again[0].packed() == after[0].packed() and again[1] == after[1]
        state = after[0]
    known = named(state) | {name for name, _ in state.unused}
    assert known == files_in(tmp_path).keys()
    assert len(known) < 20


@pytest.mark.guarantee(
    "G603",
    "A run continues from a snapshot with everything that `dedupe` remembers. If one of these files is cut, changed, "
    "or missing, the run ends before it decides anything, and the job rewinds.",
    promise="kills-and-restarts-change-no-result",
)
def test_a_snapshot_has_what_its_run_removes_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    state, _ = step(DedupeState(), old, 0)
    new.mkdir()
    link_tree(old, new)
    later = state
    for second in range(1, 80):
        later, _ = step(later, old, second, first_id=second * 50)
    assert not named(state) & files_in(old).keys()
    another_process(monkeypatch)
    assert step(state, new, 1)[1] == [True] * 50


def test_a_process_holds_no_file_of_a_checkpoint_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space of a deleted file is free when no process maps it."""
    monkeypatch.setattr(segment_files, "_LOOK_EVERY_S", 0)
    old, new = tmp_path / "old", tmp_path / "new"
    for bucket in (1, 2):
        name = SegmentFiles.of(old, bucket, 0).add(b"a segment")
        SegmentFiles.of(old, bucket, 0).read([name])
    shutil.rmtree(old)
    for bucket in (2, 1):
        SegmentFiles.of(new, bucket, 0).add(b"a segment")
        SegmentFiles.of(new, bucket, 0).read([name])
    assert list(segment_files._opened) == [new / "segments/2/0", new / "segments/1/0"]


def test_the_files_of_several_members_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a pool reads the segments of many jobs by turns. They are mapped, and their sums compared, once."""
    monkeypatch.setattr(segment_files, "_OPENED_MAX", 3)
    stores = [SegmentFiles.of(tmp_path / job / "1", 0, 0) for job in ("a", "b", "c", "d")]
    (name,) = {one.add(b"a segment") for one in stores}
    mapped = [one.read([name])[0] for one in stores[:3]]
    assert [one.read([name])[0] for one in stores[:3]] == mapped
    assert all(one.read([name])[0] is before for one, before in zip(stores[:3], mapped, strict=True))
    stores[3].read([name])
    assert len(segment_files._opened) == 3
    assert stores[0]._directory not in segment_files._opened


@pytest.mark.guarantee("G603")
@pytest.mark.parametrize("damage", ["cut", "a bit", "gone", "empty"])
def test_a_damaged_file_ends_the_run_before_anything_is_judged(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job rewinds then, as it does where Spark's own files are damaged."""
    state, _ = step(DedupeState(), tmp_path, 0)
    (file,) = files_in(tmp_path).values()
    found = bytearray(file.read_bytes())
    file.unlink()
    if damage == "cut":
        file.write_bytes(found[:-8])
    if damage == "empty":
        file.write_bytes(b"")
    if damage == "a bit":
        found[len(found) // 2] ^= 1
        file.write_bytes(found)
    another_process(monkeypatch)
    with pytest.raises(StrandlineError, match="rewinds"):
        step(state, tmp_path, 1)


def test_a_file_that_a_power_cut_tore_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step(DedupeState(), tmp_path, 0)
    (file,) = files_in(tmp_path).values()
    file.write_bytes(b"torn")
    another_process(monkeypatch)
    state, _ = step(DedupeState(), tmp_path, 0)
    assert step(state, tmp_path, 1)[1] == [True] * 50


def test_a_full_disk_is_told_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "segments").write_text("no directory")
    with pytest.raises(StrandlineError, match="Free disk space"):
        step(DedupeState(), tmp_path, 0)
