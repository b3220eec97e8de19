"""What a Spark task knows of the ledger: its address without the password, which is in the process's environment."""

from __future__ import annotations

import pytest

from strandline.ledger.database import without_secrets
from strandline.ledger.ledger import Ledger
from strandline.processing.source.data_source import open_ledger

ADDRESS = "postgresql+psycopg://strand@db:5432/ledger?sslmode=require"
WITH_PASSWORD = "postgresql+psycopg://strand:s3%40cret@db:5432/ledger?sslmode=require&sslpassword=other"


def test_the_address_holds_no_password() -> None:
    assert without_secrets(WITH_PASSWORD) == ADDRESS == without_secrets(ADDRESS)
    assert without_secrets("sqlite:////data/ledger.sqlite") == "sqlite:////data/ledger.sqlite"


@pytest.mark.parametrize(
    ("own_url", "opened"),
    [(WITH_PASSWORD, WITH_PASSWORD), ("sqlite:///other.sqlite", ADDRESS), (WITH_PASSWORD.replace("db", "x"), ADDRESS)],
)
def test_the_password_comes_from_the_environment_that_names_the_same_ledger(
    own_url: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", own_url)
    monkeypatch.setattr(Ledger, "open", lambda url: url)
    assert open_ledger(ADDRESS) == opened
