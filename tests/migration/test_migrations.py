"""Migrations build the schema: they run up, down, and up again, and end at the models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import strandline.migrations
from strandline.core.errors import Conflict
from strandline.ledger import schema
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.models import metadata
from tests.support.waiting import stretched, wait_until
from tests.support.warm_processes import WARM

MIGRATIONS = Path(strandline.migrations.__file__).parent
OPENERS = 6


def _revisions() -> list[str]:
    config = Config()
    config.set_main_option("script_location", "strandline:migrations")
    config.set_main_option("path_separator", "os")
    return [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()][::-1]


@pytest.fixture
def database(ledger_url: str) -> Iterator[Database]:
    database = Database(ledger_url)
    yield database
    database.close()


def _tables(database: Database) -> set[str]:
    with database.reading("look at the tables") as connection:
        return set(sa.inspect(connection).get_table_names()) - {"alembic_version"}


def _definitions(database: Database) -> list[str]:
    """Return the definitions that the database itself reports, including constraints."""
    with database.reading("look at the schema") as connection:
        if database.is_sqlite:
            queries = ["SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"]
        else:
            columns = "table_name, column_name, data_type, is_nullable, column_default"
            queries = [
                "SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint"
                " WHERE connamespace = 'public'::regnamespace",
                "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
                f"SELECT concat_ws(' ', {columns}) FROM information_schema.columns WHERE table_schema = 'public'",
            ]
        found = [str(row[0]) for query in queries for row in connection.execute(sa.text(query))]
    # Each database has its own order of a definition's clauses, and SQLite quotes renamed names. So the sorted words of the
    # clauses are compared, without quotes.
    clauses = (" ".join(sorted(text.translate(str.maketrans("\n\t,", "   ", '"')).split())) for text in found)
    return sorted(text for text in clauses if "alembic_version" not in text)


def test_up_down_and_up_again(database: Database) -> None:
    for revision in [*_revisions(), "base", schema.HEAD]:
        with database.writing(f"move to {revision}") as connection:
            schema.move_schema(connection, revision)
        if revision == "base":
            assert _tables(database) == set()
    assert _tables(database) == set(metadata.tables)


def test_each_revision_can_be_undone_and_done_again(database: Database) -> None:
    before = "base"
    for revision in _revisions():
        for step in (revision, before, revision):
            with database.writing(f"move to {step}") as connection:
                schema.move_schema(connection, step)
        before = revision


def test_models_and_schema_agree(database: Database) -> None:
    """Compared twice: by Alembic's own eyes, and by the definitions that the models alone would have made."""
    schema.migrate(database)
    with database.reading("compare") as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    migrated = _definitions(database)
    with database.writing("make the models' own schema") as connection:
        schema.move_schema(connection, "base")
        metadata.create_all(connection)
    assert migrated == _definitions(database)


def test_revisions_are_numbered_without_gaps_and_noted() -> None:
    revisions = _revisions()
    assert revisions == [f"r{number:04}" for number in range(1, len(revisions) + 1)]
    assert revisions[-1] == schema.HEAD
    notes = (MIGRATIONS / "NOTES.md").read_text()
    assert [revision for revision in revisions if f"\n## {revision} " not in notes] == []


def _fail_after_migrating(database: Database) -> None:
    with database.writing("fail half way") as connection:
        schema.move_schema(connection, schema.HEAD)
        raise ZeroDivisionError


def test_a_failed_migration_leaves_nothing(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail_after_migrating(database)
    assert _tables(database) == set()
    schema.migrate(database)
    assert _tables(database) == set(metadata.tables)


@pytest.mark.parametrize(("ahead", "is_usable"), [(1, True), (2, False)])
def test_code_works_on_the_next_revision_and_refuses_later_ones(
    ledger_url: str, database: Database, ahead: int, is_usable: bool
) -> None:
    Ledger.migrate(ledger_url)
    with database.writing("raise the revision") as connection:
        revision = f"r{int(schema.HEAD[1:]) + ahead:04}"
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    if is_usable:
        Ledger.open(ledger_url).close()
    else:
        with pytest.raises(Conflict, match=f"revision {revision}, and this release .* upgrade Strandline"):
            Ledger.open(ledger_url)


@pytest.mark.parametrize("revision", ["0001", "0025", "main", "r"])
def test_a_ledger_of_no_release_is_refused_with_what_to_do(ledger_url: str, database: Database, revision: str) -> None:
    """The chain of development versions had the revisions 0001 to 0025. The refusal leaves the ledger as it is."""
    Ledger.migrate(ledger_url)
    with database.writing("set the revision") as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    with pytest.raises(Conflict, match=f"revision {revision}, .* can't be upgraded. Use a new database"):
        Ledger.open(ledger_url)
    assert schema.revision_of(database) == revision
    assert _tables(database) == set(metadata.tables)


def _open(url: str, meeting: Path, me: int) -> None:
    (meeting / str(me)).touch()
    wait_until(lambda: len(list(meeting.iterdir())), lambda count: count == OPENERS, "all are there", 60.0)
    Ledger.open(url).close()


def test_many_processes_open_a_new_ledger_at_once(ledger_url: str, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    openers = [WARM.Process(target=_open, args=(ledger_url, meeting, me)) for me in range(OPENERS)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(stretched(120))
    assert [opener.exitcode for opener in openers] == [0] * OPENERS
    ledger = Ledger.open(ledger_url)
    assert ledger.jobs() == []
    ledger.close()


def test_opening_an_up_to_date_ledger_does_not_load_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'l.sqlite'}"
    Ledger.migrate(url)
    program = f"""if True:
        import sys
        from strandline.ledger.ledger import Ledger
        Ledger.open({url!r})
        print("alembic" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=stretched(60)
    )
    assert done.stdout.strip() == "False"


def test_rows_and_states_need_the_standard_library_only() -> None:
    program = "import sys, strandline.ledger.states; print('sqlalchemy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=stretched(60)
    )
    assert done.stdout.strip() == "False"


def test_every_table_and_column_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    documented: dict[str, list[str]] = {}
    for section in text.split("\n## ")[1:]:
        rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
        names = [name.strip() for row in rows for name in row.split("|")[1].split(",")]
        documented[section.splitlines()[0]] = names
    assert documented == {name: [column.name for column in table.columns] for name, table in metadata.tables.items()}
