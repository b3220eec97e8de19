"""Records that name schemas of a registry, through the whole platform.

The platform waits for an unavailable registry, and an answer of the registry is used permanently.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.test_formats import apply_example, iso, post
from tests.support.messages import RegistryServer, avro_record, numbered

START = datetime(2025, 11, 24, 16, 0, tzinfo=UTC)
FIRST = {
    "type": "record",
    "name": "Boiler",
    "fields": [
        {"name": "boiler", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "celsius", "type": "double"},
    ],
}
# The same fields in another order, with another unit and another field. Read with the first schema, it gives other
# values.
SECOND = {
    "type": "record",
    "name": "Boiler",
    "fields": [
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "site", "type": "string"},
        {"name": "boiler", "type": "string"},
    ],
}


@pytest.mark.guarantee("G281")
@pytest.mark.long
def test_a_job_waits_for_a_registry_that_is_away_and_needs_it_never_again(
    platform: Any, schema_registry: RegistryServer
) -> None:
    """Schema 1 is there from the start; the registry is away when the first records of schema 2 come, and when the audit reads
    all again."""
    stream, job, alias = apply_example(platform, "avro_registry")
    schema_registry.schemas[1, ""] = {"schema": json.dumps(FIRST)}
    schema_registry.schemas[2, ""] = {"schema": json.dumps(SECOND)}

    def send(number: int, schema: dict[str, Any], second: int, celsius: float) -> None:
        values = {"boiler": "b1", "at": START + timedelta(seconds=second), "celsius": celsius, "site": "lundy"}
        record = avro_record(schema, {field["name"]: values[field["name"]] for field in schema["fields"]})
        post(platform, stream, "application/avro", numbered(number, record))

    for second in range(5):
        send(1, FIRST, second, 20.0 + second)
    post(platform, stream, "application/octet-stream", b"\0\0\0\0\x03no such schema")
    platform.wait_until_read(job)
    schema_registry.is_away = True
    for second in range(5, 10):
        send(2, SECOND, second, 20.0 + second)
    platform.wait_for(job, lambda state: "schema registry" in state["message"], "waiting for the registry")
    assert len(platform.topic(f"{job}.dead-letter")) == 1
    schema_registry.is_away = False
    platform.wait_until_read(job)
    schema_registry.is_away = True
    platform.stop(job, drain=True)
    (document,) = platform.documents(alias).values()
    found = {name: document[name] for name in ("boiler", "@timestamp", "n", "low", "high")}
    end = iso(int(START.timestamp()) + 60)
    assert found == {"boiler": "b1", "@timestamp": end, "n": 10, "low": 20.0, "high": 29.0}
    ((value, headers),) = platform.topic(f"{job}.dead-letter")
    assert (value, headers["reason"]) == (b"\0\0\0\0\x03no such schema", b"decode")
    assert headers["message"] == b"the schema registry has no avro schema 3"
    report = platform.audit(job)
    assert (report["outcome"], report["differences"], report["sample"]) == ("clean", 0, [])
    schema_registry.is_away = False
