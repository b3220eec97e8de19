"""Log lines of a server under test stay apart from what a command under test prints."""

from __future__ import annotations

import threading

import pytest

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
