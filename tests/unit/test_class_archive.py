"""Files that stay in the cache of class archives."""

from __future__ import annotations

import os
import time
from pathlib import Path

from strandline.processing.spark.class_archive import UNUSED_S, sweep


def test_what_nobody_uses_goes_and_what_was_read_lately_stays(tmp_path: Path) -> None:
    for name, read_before_s in (("a.1.jsa", UNUSED_S - 3_600), ("b.2.jsa", UNUSED_S + 3_600), ("c.new", 0)):
        file = tmp_path / name
        file.write_bytes(b"classes")
        os.utime(file, (time.time() - read_before_s, time.time() - 2 * UNUSED_S))
    (tmp_path / "lock").touch()
    sweep(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.1.jsa", "lock"]
