"""The audit of a job that writes files and a table of PostgreSQL, and nothing else: real Kafka, Spark, PostgreSQL and ledger."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from strandline.results.sinks.files.writer import committed_files
from tests.support.audit_lab import AuditLab
from tests.support.postgresql import new_database

pytestmark = [pytest.mark.timeout(900)]
NAME = "filed"
BASE_MS = 1_788_220_800_000
DOCUMENTS = """
stream: filed-readings
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double, cost: "decimal(10,2)"}}
key: device
---
pipeline: filed
input: {{stream: filed-readings}}
event_time: {{field: ts, delay: 1h, max_ahead: null}}
steps:
  - where: temp < 90
  - emit: [{{files: {{path: "{files}"}}}}, {{sql: {{table: filed_records}}}}]
    name: all_records
  - window: {{name: minutes, tumbling: 1m, by: [device],
              aggregate: {{n: count(*), mean: avg(temp), cost: sum(cost), tops: "top_n(temp, 2)"}}}}
    emit: [{{files: {{path: "{files}-minutes"}}}}, {{sql: {{table: filed_minutes}}}}]
"""


def readings(first: int, last: int) -> list[bytes]:
    """Two days of records, some of them too hot, some broken."""
    return [
        json.dumps(
            {
                "device": f"d{number % 5}",
                "ts": BASE_MS + number * 60_000,
                "temp": "broken" if number % 13 == 0 else 95.0 if number % 11 == 0 else number % 50 / 7,
                "cost": f"{number}.25",
            }
        ).encode()
        for number in range(first, last)
    ]


@pytest.mark.guarantee("G600")
@pytest.mark.long
def test_files_and_a_table_are_audited_and_each_planted_difference_is_found(
    audit_lab: AuditLab, tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, files = audit_lab, tmp_path / "files"
    with new_database(postgresql_url) as url:
        monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", url)
        lab.settings = lab.settings.model_copy(update={"sql_sink_url": url})
        lab.apply(DOCUMENTS.format(files=files))
        lines = readings(0, 2_900)
        lab.send(f"{NAME}-readings", lines[:1_500])
        with lab.running(NAME, f"{NAME}-readings"):
            pass
        lab.send(f"{NAME}-readings", lines[1_500:])
        lab.drain(NAME)
        counts = lab.require_clean(NAME)
        good = sum(not isinstance(one["temp"], str) and one["temp"] < 90 for one in map(json.loads, lines))
        assert counts[f"files:{files}"] == counts["table:filed_records"] == {"same": good}
        assert counts[f"files:{files}-minutes"] == counts["table:filed_minutes"] == {"same": good}

        _plant(str(files), url)
        report = lab.audit(NAME)
        assert {(one["kind"], one["store"]) for one in report["sample"]} == {
            (kind, store)
            for store in (f"files:{files}", "table:filed_records")
            for kind in ("missing", "different", "extra")
        } | {("duplicate", f"files:{files}")}, report
        assert report["differences"] == 7
        day_ms = int(datetime(2026, 9, 2, 12, tzinfo=UTC).timestamp() * 1000)
        assert lab.audit(NAME, day_ms)["outcome"] == "clean"


def _plant(files: str, url: str) -> None:
    """One row of each kind, on the first day."""
    file = sorted(one for one in committed_files(files) if "day=2026-09-01" in one)[0]
    table = pq.ParquetFile(file).read()
    hotter = pc.if_else(pa.array([at == 1 for at in range(table.num_rows)]), 89.0, table["temp"])
    changed = table.set_column(table.schema.get_field_index("temp"), table.schema.field("temp"), hotter)
    foreign = table.slice(3, 1).set_column(0, table.schema.field(0), pa.array(["by-hand"]))
    assert table.schema.field(0).name == "strandline_id"
    pq.write_table(pa.concat_tables([changed.slice(1), changed.slice(2, 1), foreign]), file)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        on_first_day = "FROM filed_records WHERE strandline_time < '2026-09-02 00:00:00Z'"
        first = f"(SELECT strandline_id {on_first_day} ORDER BY 1 OFFSET {{}} LIMIT 1)"
        for statement in (
            f"DELETE FROM filed_records WHERE strandline_id = {first.format(0)}",
            f"UPDATE filed_records SET cost = cost + 0.01 WHERE strandline_id = {first.format(3)}",
            "INSERT INTO filed_records SELECT 'by-hand', "
            + ", ".join(
                column["name"]
                for column in sa.inspect(connection).get_columns("filed_records")
                if column["name"] != "strandline_id"
            )
            + f" FROM filed_records WHERE strandline_id = {first.format(5)}",
        ):
            assert connection.execute(sa.text(statement)).rowcount == 1
    engine.dispose()
