"""The spool's file: what was added is there, in order, within its bound, whatever the disk does."""

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from functools import partial

import pytest

from strandline.core.errors import StackError
from strandline.ingest.append.outcome import SpoolFull
from strandline.ingest.append.spool import Attempt, Spool, SpooledRecord

MB = 1_000_000


def record(n, topic="t", size=10):
    return SpooledRecord(
        topic, 7, n, b"%d" % n + b"x" * size, b"key" if n % 2 else None, [("a", b"b"), ("n", b"%d" % n)]
    )


@contextlib.contextmanager
def opened(directory, bytes_max=10 * MB):
    spool = Spool(directory, bytes_max=bytes_max)
    try:
        yield spool
    finally:
        spool.close()


def numbers(spool, topic="t"):
    chunk = spool.head(topic, 1_000_000, 1_000 * MB)
    return [found.sequence for found in chunk.records] if chunk else []


def test_what_was_added_comes_back_as_it_was_and_in_order(tmp_path):
    records = [record(n, topic) for n in range(100) for topic in ("t", "u")]
    with opened(tmp_path) as spool:
        spool.add(records[:50])
        spool.add(records[50:])
    with opened(tmp_path) as spool:
        assert spool.head("t", 1_000, MB).records == records[::2]
        assert spool.head("u", 3, MB).records == records[1:6:2]
        assert spool.records == 200
        assert spool.head("nobody", 1, 1) is None


def test_a_chunk_has_at_least_one_record_and_keeps_its_bounds(tmp_path):
    with opened(tmp_path) as spool:
        spool.add([record(n, size=1_000) for n in range(10)])
        assert len(spool.head("t", 5, MB).records) == 5
        assert len(spool.head("t", 100, 1).records) == 1
        assert len(spool.head("t", 100, 3_400).records) == 3


def test_what_is_drained_leaves_and_makes_room(tmp_path):
    with opened(tmp_path) as spool:
        spool.add([record(n) for n in range(10)] + [record(99, "u")])
        before = spool.bytes
        chunk = spool.head("t", 4, MB)
        spool.begin(Attempt("t", chunk.last_id, {0: 5, 1: 0}))
        spool.end("t", chunk.last_id)
        assert numbers(spool) == [4, 5, 6, 7, 8, 9]
        assert spool.attempt_of("t") is None
        assert spool.records_of == {"t": 6, "u": 1}
        assert 0 < spool.bytes < before
        left = spool.bytes
    with opened(tmp_path) as spool:
        assert (spool.bytes, spool.records) == (left, 7)


def test_an_attempt_outlives_the_process_until_it_is_over(tmp_path):
    with opened(tmp_path) as spool:
        spool.add([record(n) for n in range(3)], {"t": {0: 17, 3: 4}})
        spool.add([record(n) for n in range(3, 6)])
    with opened(tmp_path) as spool:
        attempt = spool.attempt_of("t")
        assert attempt.scan_from == {0: 17, 3: 4}
        covered = spool.head("t", 0, 0, up_to_id=attempt.last_id)
        assert [found.sequence for found in covered.records] == [0, 1, 2]
        spool.end("t", None)
        assert spool.attempt_of("t") is None
        assert numbers(spool) == list(range(6))


@pytest.mark.guarantee("G44")
def test_a_full_spool_refuses_and_keeps_what_it_has(tmp_path):
    with opened(tmp_path, bytes_max=5_000) as spool:
        spool.add([record(n) for n in range(10)])
        with pytest.raises(SpoolFull, match="STRANDLINE_SPOOL_BYTES_MAX"):
            spool.add([record(n, size=100) for n in range(50)])
        assert numbers(spool) == list(range(10))
        spool.add([record(10)])


@pytest.mark.guarantee("G44")
def test_a_full_disk_refuses_and_keeps_what_it_has(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path) as spool:
        spool.add([record(n) for n in range(10)])
        bytes_before = spool.bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # a write beyond it fails, as on a full disk
        try:
            with pytest.raises(SpoolFull, match="free space"):
                spool.add([record(n, size=1_000) for n in range(10, 1_000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert spool.bytes == bytes_before
        spool.add([record(10)])
        assert numbers(spool) == list(range(11))
    with opened(tmp_path) as spool:
        assert numbers(spool) == list(range(11))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_without_a_byte_left_refuses_and_goes_on_when_there_is_room(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        with opened(disk) as spool:
            spool.add([record(n) for n in range(10)])
            filler = disk / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4_096)
            with pytest.raises(SpoolFull):
                spool.add([record(n, size=5_000) for n in range(10, 40)])
            filler.unlink()
            spool.add([record(n) for n in range(10, 20)])
            assert numbers(spool) == list(range(20))
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.guarantee(
    "G44",
    "Spooled records survive `kill -9` and a full disk. A full spool refuses new records and reports it.",
    promise="acknowledged-records-are-stored",
)
def test_what_was_added_outlives_kill_9(tmp_path):
    program = textwrap.dedent("""
        import sys, pathlib
        from strandline.ingest.append.spool import Spool, SpooledRecord
        spool, n = Spool(pathlib.Path(sys.argv[1]), bytes_max=10**9), int(sys.argv[2])
        while True:
            spool.add([SpooledRecord("t", 7, n + i, b"v" * 200, None, []) for i in range(7)])
            n += 7
            print(n, flush=True)
    """)
    done = 0
    for _ in range(10):
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(done)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(20):
            said = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        said = ([int(line) for line in child.stdout.read().split("\n")[:-1]] or [said])[-1]
        child.wait()
        child.stdout.close()
        with opened(tmp_path) as spool:
            found = numbers(spool)
        assert found == list(range(len(found)))  # whole additions, in order
        assert said <= len(found) <= said + 7
        done = len(found)


def test_one_spool_has_one_user(tmp_path, monkeypatch):
    with opened(tmp_path) as spool:
        spool.add([record(1)])
        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.05))  # so long the second one waits
        with pytest.raises(StackError, match="can't be opened"):
            Spool(tmp_path, bytes_max=MB)


@pytest.mark.guarantee(
    "G423",
    "A flood at one stream leaves room in the spool for the other streams.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_flooded_topic_leaves_room_for_the_others(tmp_path):
    with opened(tmp_path, bytes_max=MB) as spool:
        for _ in range(60):
            with contextlib.suppress(SpoolFull):
                spool.add([record(n, size=1_000) for n in range(20)])
        with pytest.raises(SpoolFull, match=r"stream t uses \d+ bytes, and \d+ bytes are reserved for other streams"):
            spool.add([record(n, size=1_000) for n in range(20)])
        assert 0.85 * MB < spool.bytes < 8 * MB / 9
        spool.add([record(n, size=1_000, topic="quiet") for n in range(90)])
        held = spool.bytes
    with opened(tmp_path, bytes_max=MB) as spool:
        assert spool.bytes == held
        spool.end("quiet", 10**9)
        assert spool.bytes_of["quiet"] == 0
