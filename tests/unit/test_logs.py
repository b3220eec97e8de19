"""Log lines of a server under test stay apart from what a command under test prints."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from io import StringIO

import pytest

from strandline.core.logs import LossyStream
from strandline.services.supervision import backfill_jobs


def test_a_log_line_of_this_process_is_in_no_output(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def serve() -> None:
        backfill_jobs.logger.warning("backfill ended", action="backfill", job="power")
        try:
            raise ValueError("gone")
        except ValueError:
            backfill_jobs.logger.exception("could not look after the backfills")

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert tuple(capfd.readouterr()) == ("", "")
    assert "'backfill ended'" in caplog.text and "job='power'" in caplog.text and "ValueError: gone" in caplog.text


class FullDisk(StringIO):
    """Takes nothing while it is full."""

    is_full = True

    def flush(self) -> None:
        if self.is_full:
            self.truncate(0)
            self.seek(0)
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("as_json", [False, True])
def test_lines_that_a_full_disk_did_not_take_are_counted(as_json: bool) -> None:
    disk = FullDisk()
    stream = LossyStream(disk, as_json)
    for number in range(3):
        stream.write(f"{number}\n")
    disk.is_full = False
    for line in ("three\n", "four\n"):
        stream.write(line)
    told, *others = disk.getvalue().splitlines()
    assert others == ["three", "four"]
    told = json.loads(told)["event"] if as_json else told
    assert told == "3 log lines could not be written: [Errno 28] No space left on device"


def test_no_process_ends_because_its_log_is_on_a_full_disk() -> None:
    script = """
import structlog
from strandline.core.logs import configure_logs
configure_logs(as_json=False)
for number in range(1_000):
    structlog.get_logger().warning("a line", number=number)
print("went on")
"""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert done.stdout == "went on\n"
