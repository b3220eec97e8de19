"""scripts/make-secrets.sh: passwords are made once, each for one reader, and never shown."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "make-secrets.sh"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for reader in ("postgres", "strandline", "grafana"):
        (tmp_path / reader).mkdir()
    return tmp_path


def make(directory: Path) -> str:
    ran = subprocess.run(["sh", str(SCRIPT), str(directory)], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout


def test_a_password_is_made_once_and_each_reader_has_it(directory: Path) -> None:
    said = make(directory)
    password = (directory / "postgres/password").read_text()
    assert len(password) == 48 and password.isalnum()
    assert (directory / "strandline/pgpass").read_text() == f"postgres:5432:strandline:strandline:{password}\n"
    assert said == "made postgres/password\nmade grafana/password\nmade strandline/pgpass\n"
    assert (directory / "grafana/password").read_text() not in ("", password)
    assert make(directory) == ""
    assert (directory / "postgres/password").read_text() == password


def test_nobody_else_may_read_them(directory: Path) -> None:
    make(directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o400}


def test_a_password_that_an_operator_chose_is_kept(directory: Path) -> None:
    (directory / "postgres/password").write_text("chosen")
    assert make(directory) == "made grafana/password\nmade strandline/pgpass\n"
    assert (directory / "strandline/pgpass").read_text().endswith(":chosen\n")


def test_what_a_kill_left_half_written_is_made_anew(directory: Path) -> None:
    (directory / "postgres/password.new").write_text("ha")
    (directory / "postgres/password").write_text("")
    make(directory)
    assert len((directory / "postgres/password").read_text()) == 48
    assert not (directory / "postgres/password.new").exists()
