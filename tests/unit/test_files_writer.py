"""Files of results where Arrow has no local disk; the contract is in the contract tests."""

from __future__ import annotations

from typing import Any

import pyarrow.fs as pafs
import pytest

from strandline.results.sinks.files_writer import _Store

MANIFEST = "_manifests/job/windows/000000000001.json"


class Killed(Exception):
    """The process ends here."""


class Broken:
    """A file system on which a process is killed after it has opened a file: the file stays, and is empty."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def open_output_stream(self, path: str) -> Any:
        self._filesystem.open_output_stream(path).close()
        raise Killed


def test_a_manifest_that_a_killed_run_had_begun_is_written_by_the_next_one() -> None:
    filesystem = pafs._MockFileSystem()
    store = _Store(filesystem, "results", is_local=False)
    store.make("_manifests/job/windows")
    broken: Any = Broken(filesystem)
    with pytest.raises(Killed):
        _Store(broken, "results", is_local=False).create(MANIFEST, b"whole")
    assert store.list("_manifests") == []
    assert store.create(MANIFEST, b"whole")
    assert (store.list("_manifests"), store.read(MANIFEST)) == ([MANIFEST], b"whole")
    assert not store.create(MANIFEST, b"other"), "it is there"
    assert store.read(MANIFEST) == b"whole"
