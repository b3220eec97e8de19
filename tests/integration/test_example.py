"""The example as a newcomer runs it: the whole stack, on real servers. Slow: it starts and stops everything once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port_offset
from tests.support.waiting import stretched

STRANDLINE = Path(sys.executable).with_name("strandline")
DEADLINE_S = 420


@pytest.mark.long
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("auth", ["none", "tokens"])
def test_the_example_gets_from_records_to_results_and_stops_all_it_started(tmp_path, auth):
    """Every spoiled record is found again as a dead letter for its reason, and minutes come out of the cascade.

    With tokens the fleet, the watcher's parts and the command line use the token that the stack made for its owner.
    """
    data_dir = tmp_path / "stack"
    command = [
        STRANDLINE,
        "example",
        "--data-dir",
        data_dir,
        "--port-offset",
        str(free_port_offset()),
        "--seconds",
        "60",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        env=os.environ | {"STRANDLINE_AUTH": auth},
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=stretched(DEADLINE_S))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(stretched(90))
    account = output[output.find("records sent, ") :]
    assert process.returncode == 0, output
    assert "every spoiled record is a dead letter with its reason, and no other record is" in account, account
    numbers = re.search(r"([\d,]+) records sent, ([\d,]+) acknowledged, ([\d,]+) sent by UDP", output).groups()
    sent, acknowledged, by_udp = (int(number.replace(",", "")) for number in numbers)
    assert sent == acknowledged + by_udp
    by_protocol = re.search(r"sent by protocol: HTTP ([\d,]+), MQTT ([\d,]+), UDP ([\d,]+)", output)
    assert by_protocol is not None, "all three ways at once"
    assert re.search(r"windows emitted: .*per_minute [\d,]+", output)
    has_token = (data_dir / "admin.token").exists()
    assert has_token is (auth == "tokens")
    assert not has_token or (data_dir / "admin.token").stat().st_mode & 0o777 == 0o600
    assert json.loads((data_dir / "pids.json").read_text(encoding="utf-8")) == {}
    assert still_running(data_dir) == []


def still_running(data_dir: Path) -> list[str]:
    """The command lines of processes that name the data directory or work in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            directory = os.readlink(process / "cwd")
        except OSError:  # it has ended meanwhile
            continue
        if str(data_dir) in command or Path(directory).is_relative_to(data_dir):
            found.append(command)
    return found
