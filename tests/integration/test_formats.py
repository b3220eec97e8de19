"""The examples in examples/formats, by HTTP through the whole platform, against a recomputation that shares no code with it."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import cbor2
import msgspec
import pytest

from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from tests.support.messages import avro_record, message_class
from tests.support.topic_reader import read_messages
from tests.unit.test_telemetry import attribute, write_request
from tests.unit.test_telemetry import protobuf as protobuf_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "formats"
START_S = 1_764_000_000
READINGS = 3_000
KEYS = 7


class Reading(NamedTuple):
    key: int
    at_s: int
    value: float
    """Value with two decimal places."""


Windows = dict[tuple[Any, str], dict[str, Any]]
"""(key, end of the window) -> the aggregates."""


def readings() -> list[Reading]:
    """In order of time, two a second."""
    chance = random.Random(7)
    return [
        Reading(chance.randrange(KEYS), START_S + number // 2, chance.randrange(-4_000, 9_000) / 100)
        for number in range(READINGS)
    ]


def by_minute(
    used: list[Reading], name: Callable[[int], Any], aggregate: Callable[[list[float]], dict[str, Any]]
) -> Windows:
    values = defaultdict(list)
    for one in used:
        values[name(one.key), one.at_s // 60 * 60 + 60].append(one.value)
    return {(key, iso(end_s)): {"n": len(found), **aggregate(found)} for (key, end_s), found in values.items()}


def iso(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Sent(NamedTuple):
    """A request with headers of its own."""

    body: bytes
    headers: dict[str, str]


class Case(NamedTuple):
    key: str
    """The field of the results."""
    content_type: str
    bodies: Sequence[bytes | Sent]
    """One request each."""
    expected: Windows
    broken: Sequence[bytes | Sent]
    """Requests that are taken, and whose records become dead letters."""
    letters: list[str]
    """Reasons of these dead letters, sorted."""
    path: str = "records"
    headers: Mapping[str, str] = MappingProxyType({})
    """Headers of each request."""


def paths() -> Case:
    def record(one: Reading) -> dict[str, Any]:
        lines = [{"bar": one.value}] if one.value > 0 else []
        inner = {"flow-rate": f"{one.value:.2f}", "valve.open": one.key != 3}
        return {"device": {"id": f"pump-{one.key}"}, "time": one.at_s, "readings": inner, "lines": lines}

    expected = by_minute(
        [one for one in readings() if one.key != 3],
        lambda key: f"pump-{key}",
        lambda values: {"flow": math.fsum(values), "peak": max((v for v in values if v > 0), default=None)},
    )
    bodies = [json.dumps([record(one) for one in readings()]).encode()]
    broken = [
        json.dumps({**record(readings()[0]), "readings": {"flow-rate": "much"}}).encode(),
        b'{"device":{"id":"a"}',
    ]
    return Case("pump", "application/json", bodies, expected, broken, ["decode", "schema"])


def explode() -> Case:
    groups = defaultdict(list)
    for one in readings():
        groups[one.key, one.at_s // 10].append(one)
    bodies = []
    for (key, _), group in sorted(groups.items(), key=lambda item: item[0][1]):
        elements = [{"t": iso(one.at_s), "celsius": one.value} for one in group]
        bodies.append(json.dumps({"logger": f"barn-{key}", "readings": elements}))
    expected = by_minute(
        readings(), lambda key: f"barn-{key}", lambda values: {"low": min(values), "high": max(values)}
    )
    # The second and the third element are bad; the others of the record count.
    good = readings()[-1]
    elements = [{"t": iso(good.at_s), "celsius": 0}, {"t": iso(good.at_s)}, {"t": "noon", "celsius": 1}]
    broken = [json.dumps({"logger": "barn-x", "readings": elements}).encode(), b'{"logger":"barn-y"}']
    expected["barn-x", iso(good.at_s // 60 * 60 + 60)] = {"n": 1, "low": 0.0, "high": 0.0}
    lines = ["\n".join(bodies).encode()]
    return Case("logger", "application/x-ndjson", lines, expected, broken, ["schema"] * 3)


def csv() -> Case:
    def line(one: Reading) -> str:
        time = datetime.fromtimestamp(one.at_s, timezone(timedelta(hours=5, minutes=30)))
        note = '"said ""so""; once"' if one.key == 2 else ""
        return f'{time:%Y-%m-%d %H:%M:%S};"gate {one.key}";{int(one.value * 100)};{note}'

    lines = [line(one) for one in readings()]
    used = [one._replace(value=int(one.value * 100)) for one in readings()]
    expected = by_minute(used, lambda key: f"gate {key}", lambda values: {"passed": sum(values)})
    for (gate, _), result in expected.items():
        result["notes"] = result["n"] if gate == "gate 2" else 0
    return Case(
        "gate", "text/csv", ["\n".join(lines).encode()], expected, [b"2026;1;2", b'2025-01-01;"x'], ["decode"] * 2
    )


def msgpack() -> Case:
    bodies = [
        msgspec.msgpack.encode({"id": one.key, "ns": one.at_s * 10**9, "v": {"volts": one.value}})
        for one in readings()[:300]
    ]
    expected = by_minute(readings()[:300], lambda key: key, lambda values: {"low": min(values)})
    return Case("id", "application/msgpack", bodies, expected, [b"\x81", b"\x93\x01\x02\x03"], ["decode", "schema"])


def cbor() -> Case:
    bodies = [
        cbor2.dumps({"node": f"n{one.key}", "t": cbor2.CBORTag(1, one.at_s), "ppm": int(one.value * 100)})
        for one in readings()[:300]
    ]
    used = [one._replace(value=int(one.value * 100)) for one in readings()[:300]]
    expected = by_minute(used, lambda key: f"n{key}", lambda values: {"ppm": sum(values)})
    return Case("node", "application/cbor", bodies, expected, [b"\xa1", b"\xa0"], ["decode", "schema"])


def influx() -> Case:
    lines = [f"weather,site=site-{one.key} celsius={one.value},n={one.key}i {one.at_s}000000000" for one in readings()]
    expected = by_minute(
        readings(), lambda key: f"site-{key}", lambda values: {"low": min(values), "high": max(values)}
    )
    return Case("site", "text/plain", ["\n".join(lines).encode()], expected, [b"weather,site=a"], ["decode"])


def avro() -> Case:
    stream, _ = read_documents((EXAMPLES / "avro.yaml").read_bytes(), "avro.yaml")
    schema = json.loads(StreamSpec.parse(stream).avro.written_by)

    def record(one: Reading) -> bytes:
        state = "LEAK" if one.key == 3 else "OK"
        at = datetime.fromtimestamp(one.at_s, UTC)
        meter = {"id": one.key, "town": "t"}
        bar = one.value if one.value > 0 else None
        return avro_record(
            schema, {"meter": meter, "at": at, "volume": Decimal(f"{one.value:.2f}"), "state": state, "bar": bar}
        )

    used = [one for one in readings()[:300] if one.key != 3]
    expected = by_minute(
        used,
        lambda key: key,
        lambda values: {
            "volume": f"{sum(Decimal(f'{value:.2f}') for value in values):.2f}",
            "pressure": max((v for v in values if v > 0), default=None),
        },
    )
    good = record(readings()[0])
    broken = [good[:-1], good + b"\0", b"\0" * 30]
    return Case(
        "meter", "application/avro", [record(one) for one in readings()[:300]], expected, broken, ["decode"] * 3
    )


def protobuf() -> Case:
    stream, _ = read_documents((EXAMPLES / "protobuf.yaml").read_bytes(), "protobuf.yaml")
    spec = StreamSpec.parse(stream).protobuf
    message = message_class(spec.descriptor, spec.message)

    def record(one: Reading, *ampere: float) -> bytes:
        found = message(motor=f"motor-{one.key}")
        found.at.seconds = one.at_s
        if one.key != 3:
            found.rpm = one.value
        for value in ampere:
            found.phase.add(name="L", ampere=value)
        return found.SerializeToString()

    groups = readings()[:300]
    expected = by_minute(
        groups,
        lambda key: f"motor-{key}",
        lambda values: {"peak": max(abs(value) for value in values) + 1, "rpm": max(values)},
    )
    for (motor, _), result in expected.items():
        result["n"] *= 2
        if motor == "motor-3":
            result["rpm"] = None
    bodies = [record(one, abs(one.value), abs(one.value) + 1) for one in groups]
    broken = [b"\x0a\xff", record(groups[0], -1.0, -2.0)]
    return Case("motor", "application/x-protobuf", bodies, expected, broken, ["decode", "schema", "schema"])


def debezium() -> Case:
    def event(one: Reading, number: int) -> dict[str, Any]:
        row = {"id": one.key, "celsius": one.value}
        before, after, op = (row, None, "d") if one.key == 3 else (None, row, "c")
        source = {"ts_ms": one.at_s * 1000, "table": "thermostats"}
        found = {"before": before, "after": after, "op": op, "source": source, "ts_ms": one.at_s * 1000 + 5}
        return {"schema": {"type": "struct"}, "payload": found} if number % 2 else found

    used = [one for one in readings() if one.key != 3]
    expected = by_minute(used, lambda key: key, lambda values: {"low": min(values), "high": max(values)})
    bodies = [json.dumps([event(one, number) for number, one in enumerate(readings())]).encode()]
    broken = [b'{"op":"t","source":{"ts_ms":1}}', b'{"op":"c","after":{"id":1}']
    return Case("id", "application/json", bodies, expected, broken, ["decode", "schema"])


def in_groups(used: list[Reading], count: int) -> Iterator[list[Reading]]:
    return (used[first : first + count] for first in range(0, len(used), count))


def otlp() -> Case:
    """Requests by turns in JSON and in Protobuf, with several resources each."""

    def request(group: list[Reading]) -> dict[str, Any]:
        return {
            "resourceMetrics": [
                {
                    "resource": {"attributes": [attribute("service.name", f"service-{one.key}")]},
                    "scopeMetrics": [{"metrics": [{"name": "celsius", "gauge": {"dataPoints": [point(one)]}}]}],
                }
                for one in group
            ]
        }

    def point(one: Reading) -> dict[str, Any]:
        return {"asDouble": one.value, "timeUnixNano": one.at_s * 10**9, "attributes": [attribute("room", "attic")]}

    as_json = {"content-type": "application/json"}
    bodies = [
        protobuf_of(request(group)) if number % 2 else Sent(json.dumps(request(group)).encode(), as_json)
        for number, group in enumerate(in_groups(readings(), 100))
    ]
    expected = by_minute(
        readings(), lambda key: f"service-{key}", lambda values: {"low": min(values), "high": max(values)}
    )
    timeless = [{"metrics": [{"name": "x", "gauge": {"dataPoints": [{"asDouble": 1.5}]}}]}]
    broken = [b"\x0a\xff", Sent(json.dumps({"resourceMetrics": [{"scopeMetrics": timeless}]}).encode(), as_json)]
    return Case("service", "application/x-protobuf", bodies, expected, broken, ["decode", "schema"], "otlp/v1/metrics")


def prometheus() -> Case:
    """The samples of one instance are NaN, as Prometheus marks what it gets no more."""
    bodies = []
    for group in in_groups(readings(), 100):
        series = defaultdict(list)
        for one in group:
            series[f"node-{one.key}"].append((math.nan if one.key == 3 else one.value, one.at_s * 1000))
        bodies.append(
            write_request(*(({"__name__": "celsius", "instance": name}, found) for name, found in series.items()))
        )
    expected = by_minute(
        readings(), lambda key: f"node-{key}", lambda values: {"low": min(values), "high": max(values)}
    )
    for (node, _), result in expected.items():
        if node == "node-3":
            result.update(n=0, low=None, high=None)
    broken = [b"\xff\xff", write_request(({"__name__": "celsius"}, [(1.0, 2**62)]))]
    headers = {"content-encoding": "snappy"}
    return Case(
        "instance",
        "application/x-protobuf",
        bodies,
        expected,
        broken,
        ["decode", "schema"],
        "prometheus/write",
        headers,
    )


def cloudevents() -> Case:
    """In binary mode. An event in structured mode has its data elsewhere, so this stream does not take it."""

    def event(one: Reading, body: bytes) -> Sent:
        attributes = {"specversion": "1.0", "type": "reading", "id": "1", **place(one)}
        return Sent(body, {f"ce-{name}": value for name, value in attributes.items()})

    def place(one: Reading) -> dict[str, str]:
        return {"source": f"/site/{one.key}", "time": iso(one.at_s)}

    used = readings()[:300]
    bodies = [event(one, json.dumps({"celsius": one.value}).encode()) for one in used]
    expected = by_minute(used, lambda key: f"/site/{key}", lambda values: {"low": min(values), "high": max(values)})
    structured = {"specversion": "1.0", "type": "reading", "id": "2", **place(used[0]), "data": {"celsius": 1.5}}
    headers = {"content-type": "application/cloudevents+json"}
    broken = [event(used[0], b'{"celsius":'), Sent(json.dumps(structured).encode(), headers)]
    return Case("source", "application/json", bodies, expected, broken, ["decode", "schema"])


CASES = {
    case.__name__: case
    for case in (
        paths, explode, csv, influx, msgpack, cbor, avro, protobuf, debezium, otlp, prometheus, cloudevents,
    )
}  # fmt: skip


def apply_example(platform: Any, name: str) -> tuple[str, str, str]:
    """Apply the example under names of its own; return stream, job and alias."""
    text = (EXAMPLES / f"{name}.yaml").read_text()
    names = []
    for kind in ("\nstream: ", "\npipeline: ", "elasticsearch: "):
        old = text.partition(kind)[2].split("\n")[0].rstrip("}]")
        names.append(f"formats-{old}")
        text = text.replace(f"{kind.strip()} {old}", f"{kind.strip()} formats-{old}")
    # No two streams may have a topic filter in common, and other tests apply examples, too.
    platform.apply(text.replace("home/+/celsius", "formats/+/celsius").replace("doors/+/log", "formats/+/log"))
    stream, job, alias = names
    return stream, job, alias


def post(platform: Any, stream: str, content_type: str, body: bytes, query: str = "") -> None:
    send(platform, f"/v1/streams/{stream}/records{query}", body, {"content-type": content_type})


def send(platform: Any, url: str, body: bytes, headers: dict[str, str]) -> None:
    answer = platform.ingest.post(url, content=body, headers=headers)
    assert answer.status_code in (200, 204), answer.text


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_results_of_each_example_equal_a_recomputation(platform: Any, name: str) -> None:
    case = CASES[name]()
    stream, job, alias = apply_example(platform, name)
    for one in (*case.bodies, *case.broken):
        sent = one if isinstance(one, Sent) else Sent(one, {})
        headers = {"content-type": case.content_type, **case.headers, **sent.headers}
        send(platform, f"/v1/streams/{stream}/{case.path}", sent.body, headers)
    platform.wait_until_read(job)
    platform.stop(job, drain=True)
    found = {
        (document[case.key], document["@timestamp"]): {
            field: value
            for field, value in document.items()
            if field in ("n", *next(iter(case.expected.values()))) and value is not None
        }
        for document in platform.documents(alias).values()
    }
    # A sum of doubles follows the order in the log, whose partitions interleave otherwise than the records were sent.
    expected = {
        key: {
            field: value if isinstance(value, str) else pytest.approx(value, rel=1e-12)
            for field, value in result.items()
            if value is not None
        }
        for key, result in case.expected.items()
    }
    assert found == expected
    letters = [headers["reason"].decode() for _, headers in platform.topic(f"{job}.dead-letter")]
    assert sorted(letters) == case.letters
    report = platform.audit(job)
    assert report["sample"] == []
    assert (report["outcome"], report["differences"]) == ("clean", 0)


@pytest.mark.guarantee("G207")
@pytest.mark.long
def test_bare_values_are_counted_by_their_arrival(platform: Any) -> None:
    stream, job, alias = apply_example(platform, "value")
    expected: dict[str, list[float]] = defaultdict(list)
    for one in readings()[:200]:
        post(platform, stream, "text/plain", b"%.2f\n" % one.value, f"?room=room-{one.key}")
        expected[f"room-{one.key}"].append(one.value)
    post(platform, stream, "application/json", b'"cold"', "?room=cellar")
    post(platform, stream, "application/json", b"[1, 2.5]", "?room=attic")
    expected["attic"] = [1.0, 2.5]
    platform.wait_until_read(job)
    platform.stop(job, drain=True)
    documents = platform.documents(alias).values()
    counts: dict[str, int] = defaultdict(int)
    totals: dict[str, float] = defaultdict(float)
    for document in documents:
        counts[document["room"]] += document["n"]
        totals[document["room"]] += document["total"]
    assert counts == {room: len(values) for room, values in expected.items()}
    assert totals == {room: pytest.approx(math.fsum(values)) for room, values in expected.items()}
    # Each window holds what arrived in its second.
    arrivals: dict[tuple[str, str], int] = defaultdict(int)
    for message in read_messages(platform.stack.addresses.kafka_bootstrap, stream, isolation="read_committed"):
        room = dict(message.headers())["strandline-query"].decode().removeprefix("?room=")
        if room != "cellar":
            arrivals[room, iso(message.timestamp()[1] // 1000 + 1)] += 1
    assert {(document["room"], document["@timestamp"]): document["n"] for document in documents} == arrivals
    ((value, headers),) = platform.topic(f"{job}.dead-letter")
    assert (value, headers["reason"]) == (b'"cold"', b"schema")
    report = platform.audit(job)
    assert report["sample"] == []
    assert (report["outcome"], report["differences"]) == ("clean", 0)


@pytest.mark.long
def test_raw_lines_are_counted_by_their_arrival(platform: Any) -> None:
    stream, job, alias = apply_example(platform, "raw")
    for number in range(100):
        line = b' "door %d": %s\t' % (number, b"opened" if number % 4 else b"closed")
        post(platform, stream, "application/octet-stream", line, f"?host=gate-{number % 3}")
    post(platform, stream, "application/octet-stream", b"\xff", "?host=gate-0")
    platform.wait_until_read(job)
    platform.stop(job, drain=True)
    counts: dict[str, int] = defaultdict(int)
    for document in platform.documents(alias).values():
        counts[document["host"]] += document["n"]
    assert counts == {f"gate-{at}": sum(n % 3 == at and n % 4 > 0 for n in range(100)) for at in range(3)}
    ((value, headers),) = platform.topic(f"{job}.dead-letter")
    assert (value, headers["reason"]) == (b"\xff", b"decode")
    report = platform.audit(job)
    assert (report["outcome"], report["differences"], report["sample"]) == ("clean", 0, [])
