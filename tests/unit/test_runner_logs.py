"""The runner's log through the API: its last lines, the lines since then, and no secret."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.ledger import Ledger
from strandline.services.jobs import runner_logs
from strandline.services.jobs.runner_logs import runner_log, without_secrets


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


def test_of_a_line_longer_than_a_part_the_beginning_is_given(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line stops no reader, and a secret across the end of a part is not shown."""
    monkeypatch.setattr(runner_logs, "BYTES_MAX", 40)
    log = log_of(tmp_path)
    long_line = f"a long line, password=geheim {'x' * 43}postgresql://me:geheim@db {'y' * 30}"
    log.write_text(f"one\n{long_line}\ntwo\n")
    given: list[str] = []
    after = 0
    while after < log.stat().st_size:
        part = runner_log(ledger, tmp_path, "power", 5, after)
        assert part.byte_next > after
        given, after = given + part.lines, part.byte_next
    assert given == ["one", "a long line, passwor (the line is longer)", "two"]
    for offset in range(log.stat().st_size):  # a part that begins within a line shows nothing of it
        assert "heim" not in "".join(runner_log(ledger, tmp_path, "power", 5, offset).lines)
    assert runner_log(ledger, tmp_path, "power", 5, None).lines == ["two"]
    log.write_text(long_line)  # it has no end yet
    part = runner_log(ledger, tmp_path, "power", 5, None)
    assert (part.lines, part.byte_next) == ([], len(long_line))
    with log.open("a") as file:
        file.write("z\nnext\n")
    assert runner_log(ledger, tmp_path, "power", 5, part.byte_next).lines == ["next"]


def test_a_line_of_two_megabytes_is_read_to_its_end(ledger: Ledger, tmp_path: Path) -> None:
    log_of(tmp_path).write_text("x" * 2_000_000)
    part = runner_log(ledger, tmp_path, "power", 5, 0)
    assert (len(part.lines), part.byte_next) == (1, runner_logs.BYTES_MAX)
    part = runner_log(ledger, tmp_path, "power", 5, part.byte_next)
    assert (part.lines, part.byte_next) == ([], runner_logs.BYTES_MAX)  # the line is still being written
    with log_of(tmp_path).open("a") as file:
        file.write("x\nnext\n")
    assert runner_log(ledger, tmp_path, "power", 5, part.byte_next).lines == ["next"]


@pytest.mark.parametrize(
    "part", ["x", "token", "password=", "://", "://a", "a://", "token ", "a-", "password: ", " ", "@:"]
)
def test_a_long_text_is_searched_quickly(part: str) -> None:
    """In one pass: a search from each of its characters to its end took minutes, and stopped the whole service meanwhile."""
    text = part * (200_000 // len(part))
    begun_s = time.process_time()
    without_secrets(text)
    assert time.process_time() - begun_s < 1


def test_who_has_the_log_is_said(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no job"):
        runner_log(ledger, tmp_path, "nobody", 1, None)
    with pytest.raises(NotFound, match="has no log"):
        runner_log(ledger, tmp_path, "power", 1, None)
    elsewhere, neighbour = tmp_path / "elsewhere", f"{socket.gethostname()}-00000001"
    elsewhere.mkdir()
    ledger.announce_service(neighbour, "http://here:8080", str(elsewhere), 60_000)
    ledger.claim_lease("power", neighbour, 60_000)
    with pytest.raises(NotFound, match="has no log"):
        runner_log(ledger, tmp_path, "power", 1, None)
    log_of(elsewhere).write_text("there\n")
    assert runner_log(ledger, tmp_path, "power", 1, None).lines == ["there"]


def test_a_log_of_another_machine_is_there_even_if_its_path_is_the_same(ledger: Ledger, tmp_path: Path) -> None:
    """This occurs in containers, and on machines with the same setup."""
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
        (f"{'a' * 50}://me:pass@db", f"{'a' * 50}://***@db"),
        (
            '{"a-client-secret-of-somebody-with-a-long-name": "abc"}',
            '{"a-client-secret-of-somebody-with-a-long-name": "***"}',
        ),
        ("my-token token=abc", "my-token token=***"),
        ("job power, slice 7", "job power, slice 7"),
        ("the token of job power: none", "the token of job power: none"),
    ],
)
def test_no_secret_is_given_out(line: str, shown: str) -> None:
    assert without_secrets(line) == shown
