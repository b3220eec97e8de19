"""Files of Strandline are accessible only to their owner: the data directory, and the ledger in any directory."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from strandline.ingest.append.writer_identity import WriterIdentity
from strandline.ledger.ledger import Ledger
from strandline.services.embedded.preflight import require_data_dir


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.guarantee(
    "G425",
    "The data directory and the ledger's file are created for their owner only.",
    promise="secrets-and-connections-are-protected",
)
def test_a_new_data_directory_is_its_owners_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    made_by_stack, made_by_gateway, there = (tmp_path / name for name in ("stack", "gateway", "there"))
    there.mkdir(mode=0o750)
    os.chmod(there, 0o750)
    for directory in (made_by_stack, there):
        require_data_dir(directory)
    with closing(WriterIdentity.take(made_by_gateway, "writer")):
        assert mode(made_by_gateway) == mode(made_by_stack) == 0o700
    assert mode(there) == 0o750


@pytest.mark.guarantee("G425")
def test_a_new_ledger_is_its_owners(tmp_path: Path) -> None:
    Ledger.migrate(f"sqlite:///{tmp_path}/ledger.sqlite")
    assert mode(tmp_path / "ledger.sqlite") == 0o600
