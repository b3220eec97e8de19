"""The class archive with a real JVM: made once, used by the next, and never in the way."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strandline.core.settings import Settings
from strandline.processing.spark import class_archive_maker
from strandline.processing.spark.class_archive import find_archive, use_archive
from strandline.processing.spark.class_archive_maker import provide_archive
from strandline.services.embedded.stack import Stack
from tests.support.waiting import stretched

pytestmark = pytest.mark.timeout(600)

_MAKE = [sys.executable, "-m", class_archive_maker.__name__]
_START = """
import sys
from pathlib import Path
from strandline.core.settings import Settings
from strandline.processing.spark.session import start_spark
spark = start_spark(Settings(), "classes", Path(sys.argv[1]))
java = spark._jvm.java.lang.ProcessHandle.current().pid()
print("mapped" if "/java-classes/" in Path(f"/proc/{java}/maps").read_text() else "not mapped", spark.range(3).count())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, with nothing in it."""
    monkeypatch.setenv("STRANDLINE_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def archive(servers: Stack, class_archive: None, cache: Path) -> Path:
    """A copy of the one that was made for these tests."""
    made = find_archive(servers.settings.cache_dir)
    assert made is not None
    copy = cache / made.parent.name / made.name
    copy.parent.mkdir()
    return Path(shutil.copy2(made, copy))


def started(directory: Path) -> str:
    """Return what a process that started Spark printed: whether its JVM has mapped an archive, and what it counted."""
    command = [sys.executable, "-c", _START, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=stretched(300))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.long
def test_spark_maps_it(archive: Path, tmp_path: Path) -> None:
    assert archive.stat().st_size > 10_000_000
    assert started(tmp_path) == "mapped 3"


@pytest.mark.long
def test_without_one_spark_starts_all_the_same(cache: Path) -> None:
    assert started(cache) == "not mapped 3"


def test_it_is_made_once(archive: Path) -> None:
    made = archive.stat()
    subprocess.run(_MAKE, check=True, timeout=stretched(300))
    assert find_archive(archive.parent.parent) == archive
    assert archive.stat().st_mtime_ns == made.st_mtime_ns


@pytest.mark.parametrize("how", ["cut", pytest.param("changed", marks=pytest.mark.long)])
def test_one_that_is_not_as_it_was_written_is_removed(archive: Path, how: str) -> None:
    """A JVM dies of it."""
    cache = archive.parent.parent
    assert str(archive) in use_archive(cache)
    content = bytearray(archive.read_bytes())
    if how == "cut":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    assert use_archive(cache) == ""
    assert not archive.exists(), "so the next standby makes a new one"


def test_an_empty_one_says_that_this_java_makes_none(archive: Path) -> None:
    archive.write_bytes(b"")
    assert use_archive(archive.parent.parent) == ""
    provide_archive(Settings(), lambda: False)
    assert archive.stat().st_size == 0


def test_a_standby_that_is_awaited_does_not_wait_for_it(cache: Path) -> None:
    began = time.monotonic()
    provide_archive(Settings(), lambda: time.monotonic() > began + 1)
    assert time.monotonic() - began < stretched(30)
    assert find_archive(cache) is None


def test_a_standby_on_a_busy_machine_gives_it_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive_maker, "_PROVIDE_S", 1.0)
    began = time.monotonic()
    provide_archive(Settings(), lambda: False)
    assert time.monotonic() - began < stretched(30)
    assert find_archive(cache) is None
