"""`spark.read.format("strandline")` over a job with two versions of its stream's document, late and broken records.

It gives what the log, the ledger and the index contain. The example of docs/notebook.md runs too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from strandline.processing.notebook.data_source import register
from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
NAME, STREAM = "notebook", "notebook-in"
PAGE = Path(__file__).parents[2] / "docs" / "notebook.md"
BASE_MS = 1_793_491_200_000
STREAM_TEXT = """
stream: notebook-in
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, cost: "decimal(8,2)"{more}}}
"""
PIPELINE = """
pipeline: notebook
input: {stream: notebook-in}
event_time: {field: ts, delay: 1s, max_ahead: null, idle_timeout: null}
steps:
  - window: {name: tens, tumbling: 10s, by: [device], aggregate: {n: count(*), cost: sum(cost)}}
    emit: [{stream: notebook-tens}, {elasticsearch: notebook-tens}]
  - window: {name: minute, tumbling: 1m, by: [device], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: notebook-minute}]
"""


def lines(count: int, first: int) -> list[bytes]:
    """In order; some broken, some late once others have come. From the second version on some have a wind."""
    made = []
    for number in range(first, first + count):
        at = BASE_MS + number * 50 - (200_000 if number % 40 == 39 and number > 2_000 else 0)
        record = {"device": f"d{number % 3}", "ts": at, "cost": f"{number % 100}.25", "wind": number / 2}
        made.append(b"{" if number % 50 == 7 else json.dumps(record).encode())
    return made


@pytest.fixture(scope="module")
def lab(audit_lab: AuditLab) -> AuditLab:
    audit_lab.apply(STREAM_TEXT.format(more="") + "---" + PIPELINE)
    audit_lab.send(STREAM, lines(3_000, 0))
    with audit_lab.running(NAME, STREAM):
        pass
    audit_lab.apply(STREAM_TEXT.format(more=', wind: "double?"'))
    audit_lab.send(STREAM, lines(3_000, 3_000))
    audit_lab.drain(NAME)
    settings = audit_lab.settings
    addresses = {
        "ledger_url": settings.ledger_url,
        "kafka_bootstrap": settings.kafka_bootstrap,
        "elasticsearch_url": settings.elasticsearch_url,
    }
    (settings.data_dir / "stack.json").write_text(json.dumps(addresses))
    register(audit_lab.spark)
    return audit_lab


def read(lab: AuditLab, **options: str) -> DataFrame:
    asked = lab.spark.read.format("strandline").option("data_dir", str(lab.settings.data_dir))
    return asked.options(**{name.rstrip("_"): value for name, value in options.items()}).load()


def in_log(lab: AuditLab) -> dict[tuple[int, int], bytes]:
    messages = read_messages(lab.settings.kafka_bootstrap, STREAM, 2, isolation="read_committed")
    return {(one.partition() or 0, one.offset() or 0): bytes(one.value() or b"") for one in messages}  # type: ignore[arg-type]


@pytest.mark.guarantee("G370")
def test_what_spark_reads_is_what_log_ledger_and_index_hold(lab: AuditLab) -> None:
    log = in_log(lab)
    raw = read(lab, stream=STREAM, what="raw").collect()
    assert len(raw) == len(log) == 6_000
    assert {(one.partition, one.offset): bytes(one.value) for one in raw} == log

    # With the current document: all decodable records, late or not, and the broken ones with their bytes.
    rows = read(lab, stream=STREAM).collect()
    assert Counter(one.strandline_reason for one in rows) == {None: 5_880, "decode": 120}
    for one in rows:
        value = log[one.strandline_partition, one.strandline_offset]
        assert bytes(one.strandline_value or value) == value
        if one.strandline_reason is None:
            assert as_sent(one) == json.loads(value)
    halves = [read(lab, stream=STREAM, **{bound: '{"0": 1000, "1": 400}'}) for bound in ("to", "from_")]
    assert [half.count() for half in halves] == [1_400, 4_600]
    middle_ms = sorted(one.strandline_log_time for one in rows)[3_000].timestamp() * 1000
    before = read(lab, stream=STREAM, to=str(round(middle_ms)), mode="dropmalformed").count()
    after = read(lab, stream=STREAM, from_=str(round(middle_ms)), mode="dropmalformed").count()
    assert before + after == 5_880 and min(before, after) > 0

    # By slices: as the job has read, accepted and rejected them.
    judged = read(lab, job=NAME).collect()
    totals: Counter[str] = Counter()
    for checkpoint in lab.ledger.checkpoints(NAME, limit=1_000):
        totals += Counter(checkpoint.rejected)
    assert Counter(one.strandline_reason for one in judged if one.strandline_reason) == totals
    assert set(totals) == {"decode", "late"} and len(judged) == 6_000
    versions = {row.number: row.stream_versions[STREAM] for row in lab.slices(NAME)}
    taken = [one for one in judged if one.strandline_reason is None]
    assert {(versions[one.strandline_slice], one.wind is not None) for one in taken} == {(1, False), (2, True)}
    assert all(one.strandline_event_time == one.ts for one in taken)
    of_slice = Counter(one.strandline_slice for one in judged)
    some = max(of_slice)
    assert read(lab, job=NAME, slices=str(some)).count() == of_slice[some]
    assert read(lab, job=NAME, slices=f"-{some - 1}", what="raw").count() == 6_000 - of_slice[some]

    letters = read(lab, job=NAME, what="dead_letters").collect()
    assert Counter(one.reason for one in letters) == totals
    assert all(bytes(one.value) == log[one.partition, one.offset] and one.stream == STREAM for one in letters)

    documents = lab.documents(f"{NAME}-tens")
    for store in ("stream", "elasticsearch"):
        results = read(lab, job=NAME, what="results", stage="tens", store=store).collect()
        assert sorted((one.device, one.window_end, one.n, str(one.cost)) for one in results) == sorted(
            (one["device"], time_of(one["window"]["end"]), one["n"], one["cost"]) for one in documents.values()
        )
    minutes = read(lab, job=NAME, what="results", stage="minute")
    assert sum(one.n for one in minutes.collect()) == len(taken)
    assert {one.strandline_id for one in minutes.collect()} == set(lab.documents(f"{NAME}-minute"))


def as_sent(row: Row) -> dict[str, object]:
    at = round(row.ts.timestamp() * 1000)
    return {"device": row.device, "ts": at, "cost": str(row.cost), "wind": row.wind}


def time_of(text: str) -> object:
    from datetime import datetime

    return datetime.fromisoformat(text).astimezone().replace(tzinfo=None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stream": "nothing-there"}, "nothing-there"),
        ({"job": NAME, "slices": "999"}, "and 999 to 999 were asked for"),
        ({"job": NAME, "what": "results"}, "several stages that emit"),
        (
            {"job": NAME, "what": "results", "stage": "minute", "store": "stream"},
            "emits to no stream",
        ),
        ({"stream": STREAM, "mode": "FAILFAST"}, "decode at decode: notebook-in/"),
    ],
)
def test_what_cannot_be_read_says_why(lab: AuditLab, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(PySparkException, match=sentence):
        read(lab, **options).collect()


def test_the_example_of_the_docs_runs(lab: AuditLab) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for said, own in {"DIR": str(lab.settings.data_dir), "turbines": STREAM, "turbine-health": NAME}.items():
        assert f'"{said}"' in block
        block = block.replace(f'"{said}"', f'"{own}"')
    names: dict[str, DataFrame] = {}
    exec(block.replace('groupBy("turbine")', 'groupBy("device")').replace("2026-11-24T10:00:00Z", "1970-01-01"), names)  # type: ignore[arg-type]
    assert {row["device"]: row["count"] for row in names["by_turbine"].collect()}.keys() == {"d0", "d1", "d2"}
    assert names["broken"].count() == 120
    assert (names["judged"].count(), names["letters"].count() > 120) == (6_000, True)
