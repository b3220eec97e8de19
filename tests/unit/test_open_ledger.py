"""Access of a Spark task to the ledger: its address without the password, which is in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import InvalidSettings, LedgerUnavailable
from strandline.ledger.database import without_secrets
from strandline.ledger.roles import TaskLedger
from strandline.processing.source.opened_ledger import open_ledger

ADDRESS = "postgresql+psycopg://strand@db:5432/ledger?sslmode=require"
WITH_PASSWORD = "postgresql+psycopg://strand:s3%40cret@db:5432/ledger?sslmode=require&sslpassword=other"


def test_the_address_holds_no_password() -> None:
    assert without_secrets(WITH_PASSWORD) == ADDRESS == without_secrets(ADDRESS)
    assert without_secrets("sqlite:////data/ledger.sqlite") == "sqlite:////data/ledger.sqlite"


def test_a_file_that_this_machine_has_not_is_no_new_ledger(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="If Spark runs on a cluster, set STRANDLINE_LEDGER_URL of the"):
        open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_refuses_says_that_the_environment_does_not_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> TaskLedger:
        raise LedgerUnavailable("Could not look: no password supplied.")

    monkeypatch.setattr(TaskLedger, "open", refuse)
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", "sqlite:///other.sqlite")
    with pytest.raises(LedgerUnavailable, match=r"no password supplied\. STRANDLINE_LEDGER_URL .* is another ledger"):
        open_ledger(ADDRESS)
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", WITH_PASSWORD)
    with pytest.raises(LedgerUnavailable, match=r"no password supplied\.$"):
        open_ledger(ADDRESS)


@pytest.mark.parametrize(
    ("own_url", "opened"),
    [(WITH_PASSWORD, WITH_PASSWORD), ("sqlite:///other.sqlite", ADDRESS), (WITH_PASSWORD.replace("db", "x"), ADDRESS)],
)
def test_the_password_comes_from_the_environment_that_names_the_same_ledger(
    own_url: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", own_url)
    monkeypatch.setattr(TaskLedger, "open", lambda url: url)
    assert open_ledger(ADDRESS) == opened
