"""The snapshot from which a run starts, and the files that it takes from it. Directories as Spark's, without Spark."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.ledger.states import RunRow
from strandline.processing.run import snapshots as module
from strandline.processing.run.snapshots import SnapshotBounds, SnapshotManifest, Snapshots, SnapshotUnusable, link_tree
from strandline.processing.slices.spark_offset import offset_of_slice

MANIFEST = SnapshotManifest(job="power", digest="3", spark="4.2.0", shuffle_partitions=2)
RUNS = [RunRow("power", epoch, 3, 1, epoch * 1_000, None, None, "") for epoch in range(1, 10)]
BOUNDS = SnapshotBounds(slice_first=40, slice_committed=50, slice_last=51)


def snapshots_of(root: Path, epoch: int, manifest: SnapshotManifest = MANIFEST) -> Snapshots:
    return Snapshots(root, manifest, RUNS[epoch - 1])


def made(
    root: Path,
    epoch: int,
    committed: int = 50,
    pending: int | None = None,
    manifest: SnapshotManifest = MANIFEST,
    batch: int = 7,
) -> Path:
    """A run's directory as Spark leaves it after `batch` batches, and one that was begun."""
    checkpoint = snapshots_of(root, epoch, manifest).begin(None)
    write_batch(checkpoint, "offsets", batch, committed)
    write_batch(checkpoint, "commits", batch, None)
    if pending is not None:
        write_batch(checkpoint, "offsets", batch + 1, pending)
    state = checkpoint / "state" / "0" / "1"
    state.mkdir(parents=True)
    (state / f"{batch + 1}.delta").write_bytes(b"state")
    return checkpoint


def write_batch(checkpoint: Path, log: str, batch: int, number: int | None) -> None:
    (checkpoint / log).mkdir(exist_ok=True)
    content = b"v1\n{}" if number is None else offsets_file(2, offset_of_slice(number))
    (checkpoint / log / str(batch)).write_bytes(content)


def offsets_file(shuffle_partitions: int, offset: dict[str, int]) -> bytes:
    metadata = {"conf": {"spark.sql.shuffle.partitions": str(shuffle_partitions)}}
    return f"v1\n{json.dumps(metadata)}\n{json.dumps(offset)}".encode()


def chosen(root: Path, epoch: int = 9, bounds: SnapshotBounds = BOUNDS) -> tuple[tuple[int, int] | None, list[str]]:
    found, refused = snapshots_of(root, epoch).choose(bounds, RUNS)
    return (found.epoch, found.slice) if found else None, refused


def test_without_a_directory_there_is_none(tmp_path: Path) -> None:
    assert chosen(tmp_path) == (None, [])


def test_the_one_with_the_least_to_replay_is_chosen(tmp_path: Path) -> None:
    made(tmp_path, 3, 49)
    made(tmp_path, 4, 45)
    assert chosen(tmp_path) == ((3, 49), [])
    made(tmp_path, 5, 49)
    assert chosen(tmp_path) == ((5, 49), [])


@pytest.mark.guarantee(
    "G91",
    "A snapshot that is torn, lost, of another version, or unknown to the ledger is never used. The job rewinds in "
    "the same process, its results are the same, and an event names the reason.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize(
    ("committed", "pending", "why"),
    [
        (50, None, None),
        (50, 51, None),
        (49, 50, None),
        (39, 50, None),
        (39, 45, None),
        (51, None, "it holds slice 51, and the ledger's last is 50"),
        (50, 52, "slices 51 to 52 is not the one that the ledger has planned"),
        (49, 51, "slices 50 to 51 is not the one"),
        (38, 50, "it ends with slice 38, so it replays more slices than a rewind, which begins at 40"),
    ],
)
def test_a_snapshot_must_fit_the_ledger(tmp_path: Path, committed: int, pending: int | None, why: str | None) -> None:
    made(tmp_path, 3, committed, pending)
    found, refused = chosen(tmp_path)
    if why is None:
        assert (found, refused) == ((3, committed), [])
    else:
        assert found is None
        assert why in refused[0]
        assert not (tmp_path / "power" / "3").exists(), "it is removed: it can't fit later"


def test_a_slice_that_the_ledger_does_not_know_is_not_run_again(tmp_path: Path) -> None:
    made(tmp_path, 3, 50, 51)
    found, _ = chosen(tmp_path, bounds=replace(BOUNDS, slice_last=50))
    assert found is None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            replace(MANIFEST, digest="2"),
            "it was made by a version of the pipeline that computes its windows in another way",
        ),
        (replace(MANIFEST, spark="4.1.1"), "it was made with spark 4.1.1, and now it is 4.2.0"),
        (replace(MANIFEST, shuffle_partitions=4), "it was made with shuffle_partitions 4, and now it is 2"),
        (replace(MANIFEST, format=0), "it was made with format 0, and now it is 5"),
    ],
)
def test_a_snapshot_of_another_maker_is_refused(tmp_path: Path, other: SnapshotManifest, why: str) -> None:
    made(tmp_path, 3, manifest=other)
    found, refused = chosen(tmp_path)
    assert (found, refused) == (None, [f"run 3: {why}"])


def test_a_snapshot_of_a_run_of_another_ledger_is_refused(tmp_path: Path) -> None:
    """A ledger that was put back to an older copy gives out the same epochs and slices again, cut in another way."""
    made(tmp_path, 3)
    others = [replace(run, started_ms=run.started_ms + 1) for run in RUNS]
    found, refused = snapshots_of(tmp_path, 9).choose(BOUNDS, others)
    assert found is None
    assert "it was made with run_started_ms 3000" in refused[0]


@pytest.mark.guarantee("G92")
def test_a_run_that_was_overtaken_leaves_newer_directories_alone(tmp_path: Path) -> None:
    made(tmp_path, 3)
    made(tmp_path, 5)
    zombie = snapshots_of(tmp_path, 4)
    found, refused = zombie.choose(BOUNDS, RUNS)
    assert found is not None
    assert found.epoch == 3
    assert refused == ["run 5: the ledger knows no such run before this one"]
    zombie.begin(found)
    zombie.remove_others()
    zombie.remove_all()
    assert [one.name for one in (tmp_path / "power").iterdir()] == ["5"]


def spoil(checkpoint: Path, name: str, content: bytes | None) -> None:
    file = checkpoint / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.mark.guarantee("G91")
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("../made-by.json", None, "it is incomplete"),
        ("../made-by.json", b'{"job": "po', "it is incomplete"),
        ("../made-by.json", b"[]", "it was made in another format"),
        ("offsets/7", None, "its logs don't fit together: batch 7 is committed, 8 begun|can't be read"),
        ("offsets/7", b"", "its log file offsets/7 can't be read"),
        ("offsets/7", b'v1\n{}\n{"slice": 5', "its log file offsets/7 can't be read"),
        ("offsets/7", b'v2\n{}\n{"slice": 50}', "its log file offsets/7 can't be read"),
        ("offsets/7", offsets_file(2, {"slices": 50}), "its log file offsets/7 is not as it was written"),
        ("offsets/7", offsets_file(2, offset_of_slice(50) | {"slice": 49}), "{'slice': 49, 'sum'"),
        ("offsets/7", offsets_file(4, offset_of_slice(50)), "spark.sql.shuffle.partitions is not 2"),
        ("offsets/8", offsets_file(4, offset_of_slice(51)), "spark.sql.shuffle.partitions is not 2"),
        ("offsets/8", b"v1\n", "its log file offsets/8 can't be read"),
        ("offsets/9", b'v1\n{}\n{"slice": 51}', "its logs don't fit together"),
        ("commits/7", None, "it holds no committed batch yet"),
        ("commits/7", b"\0\0\0", "its log file commits/7 can't be read"),
    ],
)
def test_a_torn_snapshot_is_refused(tmp_path: Path, name: str, content: bytes | None, why: str) -> None:
    checkpoint = made(tmp_path, 3, 50, 51)
    spoil(checkpoint, name, content)
    found, refused = chosen(tmp_path)
    assert found is None
    assert any(one in refused[0] for one in why.split("|")), refused


@pytest.mark.guarantee(
    "G92",
    "No two runs write into the same checkpoint directory, and a superseded run changes nothing in the directory of "
    "the next one.",
    promise="one-leader-and-one-run-write",
)
def test_a_run_writes_into_its_own_directory_only(tmp_path: Path) -> None:
    """Spark does so: a new file under a temporary name, which replaces the old one."""
    old = made(tmp_path, 3, 50, 51)
    (old / "state" / "0" / "1" / ".9.delta.0f.tmp").write_bytes(b"half")
    mine = snapshots_of(tmp_path, 4)
    found, _ = mine.choose(BOUNDS, RUNS)
    new = mine.begin(found)
    assert {one.relative_to(new) for one in new.rglob("*")} == {
        one.relative_to(old) for one in old.rglob("*") if one.suffix != ".tmp"
    }
    assert (old / "offsets" / "7").samefile(new / "offsets" / "7")
    zombie = old / "state" / "0" / "1" / "new"
    zombie.write_bytes(b"of a zombie")
    zombie.replace(old / "state" / "0" / "1" / "8.delta")
    write_batch(old, "commits", 8, None)
    assert (new / "state" / "0" / "1" / "8.delta").read_bytes() == b"state"
    assert not (new / "commits" / "8").exists()


def test_where_no_links_can_be_made_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = made(tmp_path, 3)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    new = tmp_path / "new"
    new.mkdir()
    link_tree(old, new)
    assert (new / "offsets" / "7").read_text() == (old / "offsets" / "7").read_text()
    assert not (old / "offsets" / "7").samefile(new / "offsets" / "7")


def test_a_file_that_vanishes_while_it_is_taken_over_makes_the_snapshot_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, 3)
    mine = snapshots_of(tmp_path, 4)
    found, _ = mine.choose(BOUNDS, RUNS)

    def vanish(source: Path, target: Path) -> None:
        raise FileNotFoundError(2, "No such file", str(source))

    monkeypatch.setattr(os, "link", vanish)
    with pytest.raises(SnapshotUnusable, match="was changed meanwhile"):
        mine.begin(found)
    monkeypatch.undo()
    again, refused = snapshots_of(tmp_path, 5).choose(BOUNDS, RUNS)
    assert again is not None
    assert again.epoch == 3
    assert "run 4: it is incomplete" in refused[0], "what was begun and not finished is never taken for a snapshot"


def test_after_the_first_commit_only_the_newest_is_kept(tmp_path: Path) -> None:
    for epoch in (3, 4, 5):
        made(tmp_path, epoch)
    snapshots_of(tmp_path, 5).remove_others()
    assert [one.name for one in (tmp_path / "power").iterdir()] == ["5"]


def test_the_logs_are_taken_before_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, taken = made(tmp_path, 3), []
    monkeypatch.setattr(module.os, "link", lambda source, target: taken.append(source.relative_to(old).parts[0]))
    (tmp_path / "new").mkdir()
    link_tree(old, tmp_path / "new")
    assert taken.index("state") > taken.index("offsets")
    assert taken[-1] == "state"
