"""The runner's log through the API: its last lines, what came since, and no secret."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.ledger import Ledger
from strandline.services.rest import runner_logs
from strandline.services.rest.runner_logs import runner_log, without_secrets


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    opened.submit_job("power", "", {"pipeline": "power"})
    return opened


def log_of(directory: Path) -> Path:
    (directory / "logs").mkdir(exist_ok=True)
    return directory / "logs" / "runner-power.log"


def test_the_last_lines_and_then_what_came_since(ledger: Ledger, tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.write_text("one\ntwo\nthree\nhal")
    part = runner_log(ledger, tmp_path, "power", 2, None)
    assert part.lines == ["two", "three"]
    assert runner_log(ledger, tmp_path, "power", 2, part.byte_next).lines == []
    with log.open("a") as file:
        file.write("f\nfive\n")
    part = runner_log(ledger, tmp_path, "power", 2, part.byte_next)
    assert part.lines == ["half", "five"]
    log.write_text("anew\n")  # it had grown too large, and was emptied
    assert runner_log(ledger, tmp_path, "power", 2, part.byte_next).lines == ["anew"]


def test_a_long_log_is_given_in_parts(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_logs, "BYTES_MAX", 12)
    log_of(tmp_path).write_text("".join(f"line {number}\n" for number in range(9)))
    assert runner_log(ledger, tmp_path, "power", 5, None).lines == ["line 8"]
    first = runner_log(ledger, tmp_path, "power", 5, 0)
    assert (first.lines, first.byte_next) == (["line 0"], 7)


def test_who_has_the_log_is_said(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no job"):
        runner_log(ledger, tmp_path, "nobody", 1, None)
    with pytest.raises(NotFound, match="no log yet"):
        runner_log(ledger, tmp_path, "power", 1, None)
    elsewhere, neighbour = tmp_path / "elsewhere", f"{socket.gethostname()}-00000001"
    elsewhere.mkdir()
    ledger.announce_service(neighbour, "http://here:8080", str(elsewhere), 60_000)
    ledger.claim_lease("power", neighbour, 60_000)
    with pytest.raises(NotFound, match="no log yet"):
        runner_log(ledger, tmp_path, "power", 1, None)
    log_of(elsewhere).write_text("there\n")
    assert runner_log(ledger, tmp_path, "power", 1, None).lines == ["there"]


def test_a_log_of_another_machine_is_there_even_if_its_path_is_the_same(ledger: Ledger, tmp_path: Path) -> None:
    """As in containers, and on machines that are set up alike."""
    ledger.announce_service("other-00000001", "http://other:8080", str(tmp_path), 60_000)
    ledger.claim_lease("power", "other-00000001", 60_000)
    log_of(tmp_path).write_text("of an earlier run, here\n")
    with pytest.raises(Conflict, match="--url http://other:8080"):
        runner_log(ledger, tmp_path, "power", 1, None)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("could not reach postgresql://me:pass@db/strandline", "could not reach postgresql://***@db/strandline"),
        ("password=geheim, next", "password=***, next"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("job power, slice 7", "job power, slice 7"),
    ],
)
def test_no_secret_is_given_out(line: str, shown: str) -> None:
    assert without_secrets(line) == shown
