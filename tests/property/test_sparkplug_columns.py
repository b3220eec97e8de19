"""Sparkplug messages that are read together, as columns, become what each becomes when it is read alone.

The rows are the same, the values to the last bit, and the rejects. The same births are known afterwards, for any
messages in between.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.record_headers import HEADER_REPLAY_OF, pack_header_values
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.columns.read_columns import DecodedColumns
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.sparkplug import message_rows
from strandline.processing.formats.sparkplug.payload import DATATYPES
from strandline.processing.pipelines.event_time import EventTimeSource
from tests.property.test_formats import mutated
from tests.support.examples import examples
from tests.support.sparkplug import metric, payload, topic

NOW_MS = 1_764_000_000_000
SCHEMAS: list[dict[str, Any]] = [
    {
        "metric": "string",
        "time": "timestamp?",
        "v": {"type": "double?", "from": "$.value_double", "max": 1e30},
        "whole": {"type": "long?", "from": "$.value_long"},
        "text": {"type": "string?", "from": "$.value_string"},
        "on": {"type": "boolean?", "from": "$.value_boolean"},
        "other": {"type": "string?", "from": "$.value_json"},
        "alias": "long?",
        "seq": "integer?",
        "group": "string",
        "node": "string",
        "device": "string?",
        "message": "string",
        "datatype": "string",
        "is_null": "boolean",
        "is_stale": "boolean",
        "is_historical": "boolean",
        "is_transient": "boolean",
    },
    {
        "v": {"type": "double", "from": "$.value_long"},
        "d": {"type": "long?", "from": "$.value_double"},
        "device": "string",
        "nothing": {"type": "string?", "from": "$.nothing.here"},
        "time": "timestamp",
    },
    {"v": {"type": "string", "from": "$.value_string"}, "x": {"type": "boolean?", "from": "$.metric"}, "time": "timestamp?"},
]  # fmt: skip
WHOLES = [
    0,
    1,
    -1,
    7,
    127,
    128,
    255,
    256,
    -32_769,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32 - 1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
]
FLOATS = [0.0, -0.0, 1.5, 0.1, 1e300, -5e-324, 1e31, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "a", "Łódź", 'in "quotes"', "\0", "x" * 300]
NAMES = [None, *DATATYPES]


class Way:
    """One schema, read both ways."""

    def __init__(self, schema: dict[str, Any]) -> None:
        document = {
            "stream": "s",
            "format": "sparkplug",
            "schema": schema,
            "key": "node",
            "mqtt": {"topics": ["spBv1.0/#"], "fields": {"node": 3}},
        }
        document["mqtt"]["fields"] |= {"device": 4} if "device" in schema else {}
        document["schema"] = {**schema, "node": "string"}
        self.config = record_format(StreamSpec.from_document(document))
        self.fields = [field.name for field in self.config.fields]
        self.decoder = Decoder(self.config.fields, EventTimeSource("time", or_log=True), self.fields)

    def outcome(
        self, slices: list[tuple[list[bytes | None], list[bytes | None]]], rows_min: int
    ) -> tuple[list[Any], int]:
        """All that becomes of the slices, one after the other, and how many rows columns stood for."""
        reader, found, count = RowReader(self.config), [], 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(message_rows, "ROWS_MIN", rows_min)
            for values, sources in slices:
                for rows in reader.parts(values, sources):
                    log_ms = rows.of_each([NOW_MS + at for at in range(len(values))])
                    decoded = self.decoder.decode(rows.texts, log_ms, NOW_MS - 5_000, 300_000)
                    rejects = {one.index: (one.reason, one.message) for one in decoded.rejects}
                    columns = [map(repr, decoded.arrays[name].to_pylist()) for name in self.fields]
                    accepted = zip(map(repr, decoded.event_time.to_pylist()), *columns, strict=True)
                    assert rows.places is not None and rows.elements is not None
                    for at, (place, element) in enumerate(zip(rows.places, rows.elements, strict=True)):
                        letter = reader.dead_letter_value(values, rows, at)
                        what = rejects[at] if at in rejects else next(accepted)
                        found.append((place, element, rows.texts[at], what, letter))
                    count += int(rows.texts.fits.sum()) if isinstance(rows.texts, DecodedColumns) else 0
                assert reader.sessions is not None
                found.append(reader.sessions.packed())
        return found, count


WAYS = [Way(schema) for schema in SCHEMAS]


def a_value(datatype: str | None, chance: random.Random) -> tuple[str, Any]:
    """Return the datatype in which the value is written, and a value."""
    if datatype in ("Float", "Double"):
        one = chance.choice([*FLOATS, chance.random()])
        kind = chance.choice([datatype, "Float", "Double"])
        return kind, one if kind == "Double" or abs(one) < 1e38 or one in (float("inf"), float("-inf")) else 1.5
    if datatype == "Boolean":
        return "Boolean", chance.random() < 0.5
    if datatype in ("String", "Text", "UUID"):
        return "String", chance.choice(TEXTS)
    if datatype in ("Bytes", "File", "DataSet", "Template") or (datatype or "").endswith("Array"):
        return str(datatype), chance.randbytes(chance.choice([0, 1, 4, 8]))
    return chance.choice(["Int32", "Int64", "Int64"]), chance.choice(WHOLES)


class Plant:
    """A node and a device that say what they declared, mostly."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.seq = chance, 0
        names = [*DATATYPES[1:16], *(DATATYPES[16:20] if chance.random() < 0.2 else ())]
        self.of = {device: [chance.choice(names) for _ in range(5)] for device in ("", "d1")}

    def message(self, kind: str) -> tuple[bytes | None, bytes | None]:
        chance, device = self.chance, "d1" if kind[0] == "D" else ""
        self.seq = 0 if kind == "NBIRTH" else (self.seq + 1) % 256
        metrics = []
        for at, datatype in enumerate(self.of[device]):
            if kind.endswith("BIRTH"):
                metrics.append(metric(f"m{at}", *[None, datatype], alias=at * 300, is_null=True))
            elif chance.random() < 0.8:
                metrics.append(self.metric(at, datatype))
        if kind == "NBIRTH":
            metrics.append(metric("bdSeq", 0, "Int64"))
        time_ms = chance.choice([None, NOW_MS, 0, NOW_MS - 10**7])
        value = payload(*metrics, seq=None if chance.random() < 0.02 else self.seq, time=time_ms)
        source = topic(kind, device=device)
        if chance.random() < 0.02:
            source = pack_header_values(source, {HEADER_REPLAY_OF: b"s/0/1"}) or b""
        return value, None if chance.random() < 0.01 else source

    def metric(self, at: int, datatype: str) -> bytes:
        chance = self.chance
        own = datatype if chance.random() < 0.2 else None
        if chance.random() < 0.02:
            own = chance.choice([name for name in DATATYPES if not name.startswith(("Unknown", "PropertySet"))])
        kind, value = a_value(own or datatype, chance)
        name = chance.choice(["", f"m{at}", f"m{at}", "Łódź"]) if chance.random() < 0.1 else None
        alias = chance.choice([None, at, 2**40, 2**63]) if chance.random() < 0.02 else at * 300
        flags = {flag: chance.random() < 0.1 for flag in ("is_historical", "is_transient", "is_null")}
        time_ms = chance.choice([None, None, 0, NOW_MS + 1]) if chance.random() < 0.99 else 2**63
        made = metric(name, None if chance.random() < 0.01 else value, own, alias, time_ms, kind=kind, **flags)
        odd = [
            b"\x42\x00",
            b"\x4b\x4c",
            b"\x38\x00",
            b"\x28\x02",
            b"\x10\x80\x80\x00",
            b"\x50\xff" + b"\xff" * 8 + b"\x01",
            b"\xa2\x06\x00",
            b"\x20\x63",
        ]
        return made + chance.choice(odd) if chance.random() < 0.005 else made


def some_slices(chance: random.Random, count: int) -> list[tuple[list[bytes | None], list[bytes | None]]]:
    """The births, mostly data behind them, and what is broken, in slices."""
    plant, slices, plain = Plant(chance), [], chance.random() < 0.5
    rest = [] if plain else ["NBIRTH", "DBIRTH", "DDEATH", "NDEATH", "NCMD"]
    kinds = ["NBIRTH", "DBIRTH", *chance.choices(["NDATA", "DDATA"] * 8 + rest, k=count)]
    while kinds:
        size = chance.randrange(1, len(kinds) + 1)
        messages = [plant.message(kind) for kind in kinds[:size]]
        values = [
            mutated(value, chance) if value and chance.random() < (0.02 if plain else 0.15) else value
            for value, _ in messages
        ]
        slices.append(
            ([None if chance.random() < 0.01 else value for value in values], [source for _, source in messages])
        )
        kinds = kinds[size:]
    return slices


def require_alike(chance: random.Random, count: int = 30) -> int:
    """Returns how many of the rows columns stood for."""
    slices = some_slices(chance, count)
    rows = 0
    for way in WAYS:
        found, of_way = way.outcome(slices, 1)
        exact, none = way.outcome(slices, 10**9)
        assert found == exact
        assert none == 0
        rows += of_way
    return rows


@pytest.mark.guarantee("G570")
def test_most_rows_of_plain_data_are_read_as_columns() -> None:
    chance = random.Random(1)
    messages = [(payload(metric("a", None, "Double", alias=1, is_null=True), seq=0), topic("NBIRTH"))]
    messages += [
        (payload(metric(alias=1, value=at / 8, kind="Double"), seq=at, time=NOW_MS), topic("NDATA"))
        for at in range(1, 200)
    ]
    values, sources = zip(*messages, strict=True)
    assert WAYS[0].outcome([([*values], [*sources])], 64)[1] == 199
    assert sum(require_alike(chance) for _ in range(3)) > 0


@pytest.mark.guarantee(
    "G570",
    "Sparkplug messages are the same decoded as columns or one at a time: the same rows in the same order, the same "
    "dead letters, and the same remembered births.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@given(seed=st.integers(0, 2**32))
@examples(15)
def test_any_messages_become_by_columns_what_each_becomes_by_itself(seed: int) -> None:
    require_alike(random.Random(seed))


@pytest.mark.skipif("STRANDLINE_FUZZ_S" not in os.environ, reason="for a longer run: STRANDLINE_FUZZ_S=600")
def test_columns_of_messages_by_the_clock() -> None:
    chance = random.Random(os.environ.get("STRANDLINE_FUZZ_SEED"))
    until_s = time.monotonic() + float(os.environ["STRANDLINE_FUZZ_S"])
    while time.monotonic() < until_s:  # sleeps: the length of the run is asked for
        require_alike(chance, 100)
