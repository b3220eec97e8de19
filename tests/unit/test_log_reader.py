"""The errors of a reader if Kafka is unavailable."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from strandline.core.errors import LogUnavailable
from strandline.log.messages import LogReader
from strandline.log.reader import OffsetRange


def test_why_nothing_came_stands_in_the_error_and_not_line_after_line_in_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        bootstrap = f"127.0.0.1:{closed.getsockname()[1]}"
    with closing(LogReader(bootstrap, timeout_s=1)) as reader:
        with pytest.raises(LogUnavailable, match=r"sent no records of stream readings.*Connect call failed"):
            next(reader.read(OffsetRange("readings", 0, 0, 1)))
    assert capfd.readouterr().err == ""
