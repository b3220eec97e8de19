"""Tables of the command line on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

import pytest
from rich.table import Table

from strandline.services.cli import commands, output
from strandline.services.cli.display import facts_table, table_of
from strandline.services.cli.output import print_tables, print_wide

LONG = "device: required but missing, " * 8
ROWS = [("machines/0/0", LONG, '{"machine":\n\t"m1"}'), ("machines/0/1", "not JSON", "x")]

PrintLines = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _not_wide() -> None:
    print_wide(False)


@pytest.fixture
def print_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> PrintLines:
    """`print_tables` with a terminal of 80 columns as stdout; it returns the lines without their colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")

    def print_lines(*shown: Table) -> list[str]:
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        with redirect_stdout(terminal):
            print_tables(shown)
        return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in terminal.getvalue().splitlines()]

    return print_lines


def test_rows_outside_a_terminal_are_whole_lines(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_tables([table_of(("WHERE", "MESSAGE", "VALUE"), ROWS)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split("  ", 1) == ["machines/0/0", LONG.rstrip() + "   " + '{"machine":\\n\\t"m1"}']
    assert lines[2] == f"machines/0/1  {'not JSON'.ljust(len(LONG))}  x"


def test_facts_outside_a_terminal_are_one_line_each(capsys):
    print_tables([facts_table([("message", LONG + "\nend"), ("state", "failed")])])
    assert capsys.readouterr().out.splitlines() == [f"message  {LONG}\\nend", "state    failed"]


def test_a_row_on_a_terminal_has_its_width_and_long_values_are_shortened(print_on_a_terminal, capsys):
    lines = print_on_a_terminal(table_of(("WHERE", "MESSAGE", "VALUE"), ROWS))
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("machines/0/0  device: required but")
    assert "…" in lines[1] and "…" not in lines[2]
    assert "--wide" in capsys.readouterr().err


def test_a_table_that_fits_the_terminal_gives_no_hint(print_on_a_terminal, capsys):
    assert print_on_a_terminal(table_of(("WHERE", "MESSAGE"), [("machines/0/1", "not JSON")])) == [
        "WHERE         MESSAGE",
        "machines/0/1  not JSON",
    ]
    assert capsys.readouterr().err == ""


def test_a_fact_on_a_terminal_is_folded_and_not_shortened(print_on_a_terminal):
    lines = print_on_a_terminal(facts_table([("message", LONG)]))
    assert len(lines) > 2 and all(len(line) <= 80 for line in lines)
    assert " ".join(" ".join(line.split()) for line in lines) == f"message {LONG.strip()}"


def test_wide_prints_long_values_in_full_on_a_terminal(print_on_a_terminal, capsys):
    print_wide(True)
    lines = print_on_a_terminal(table_of(("WHERE", "MESSAGE", "VALUE"), ROWS))
    assert len(lines) == 3
    assert LONG in lines[1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [("job", "list"), ("dead-letters", "list"), ("apply",), ("pipeline", "run")])
def test_commands_with_tables_have_the_option_wide(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["strandline", *words, "--help"])
    with pytest.raises(SystemExit):
        commands.main()
    assert "--wide" in capsys.readouterr().out


def test_the_option_wide_reaches_what_is_printed(monkeypatch, tmp_path):
    monkeypatch.setenv("STRANDLINE_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "argv", ["strandline", "job", "list", "--wide"])
    with pytest.raises(SystemExit):
        commands.main()
    assert output._is_wide.get()
