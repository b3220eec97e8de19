"""Every format does what `processing/formats/contract.py` says: those of Strandline, and the format of a package."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pytest

from strandline.core.streams.format_registry import FORMATS, module_of
from strandline.processing.formats.contract import FormatUnderTest, check_format
from tests.property.test_columns import AVRO as AVRO_SCHEMA
from tests.property.test_columns import SCHEMA, SCHEMAS, WAYS, a_record
from tests.support.plugins import PLUGINS, forget_toys, install_toys
from tests.support.waiting import stretched
from tests.unit.test_telemetry import OTLP, protobuf, write_request

TOY = "acme_frames"


def of_way(name: str, *broken: bytes, **more: Any) -> FormatUnderTest:
    """Return the format as `test_columns.py` has it, with plain records."""
    write, document = WAYS[name]
    chance = random.Random(3)
    numbers = [{"n": chance.choice([None, 1, 300]), "at": 1_764_000_000_000 + 16 * at} for at in range(40)]
    records = [write(a_record(chance, is_plain=True) | one) for one in numbers]
    document = {"schema": SCHEMA, "csv": {"columns": list(SCHEMA)} if name == "csv" else None, **document}
    return FormatUnderTest({key: one for key, one in document.items() if one is not None}, records, broken, **more)


def avro_file() -> bytes:
    from io import BytesIO

    chance, file = random.Random(4), BytesIO()
    records = [a_record(chance, is_plain=True) | {"spare": None} for _ in range(30)]
    fastavro.writer(file, AVRO_SCHEMA, records)
    return file.getvalue()


def struct_frame(at: int) -> bytes:
    celsius = 32_767 if at % 7 == 0 else at * 57
    return struct.pack(">HIhB", at + 99, 1_764_000_000 + at, celsius, at % 256) + struct.pack("<f", at / 3)


def senml(at: int) -> bytes:
    pack = [
        {"bn": "urn:dev:1/", "bt": 1_764_000_000 + at, "n": "t", "u": "Cel", "v": at / 4},
        {"n": "m", "vs": "on", "t": -5},
    ]
    return json.dumps(pack).encode()


def frames() -> FormatUnderTest:
    from acme_frames.frame import SIZE, frame

    good = [frame(f"pump-{at}", 1_764_000_000_000 + at, at / 4, "big") for at in range(20)]
    broken = [b"", good[0][:-1], b"XX" + good[0][2:], frame("\u00e4", 1, 1.0, "big"), good[0] * 2]
    document = {
        "format": TOY,
        "format_options": {"byte_order": "big"},
        "schema": {"device": "string", "time": "timestamp", "value": "double?"},
    }
    assert len(good[0]) == SIZE
    return FormatUnderTest(document, good, broken, sample=b"".join(good), topic=good)


def lines(name: str) -> bytes:
    return b"\n".join(of_way(name).good)


TELEMETRY = {"schema": {"metric": "string?", "name": "string?", "value": "double?"}}
CASES: dict[str, Callable[[], FormatUnderTest]] = {
    "json": lambda: of_way("json, paths", b"{", b"[1]", b'{"at":1}', sample=lines("json"), topic=of_way("json").good),
    "json, embedded": lambda: FormatUnderTest(
        {"schema": {"dev": "string", "t": {"type": "double", "from": "$.data.t"}}, "embedded": [{"at": "$.data"}]},
        [json.dumps({"dev": f"d{at}", "data": json.dumps({"t": at / 4, "note": "x"})}).encode() for at in range(9)],
        [b"{", b'{"dev":"a","data":"{"}', b'{"dev":"a","data":"x"}', b'{"dev":"a"}'],
    ),
    "json, base64": lambda: FormatUnderTest(
        {
            "schema": {"dev": "string", "t": {"type": "double", "from": "$.data"}},
            "embedded": [{"at": "$.data", "encoding": "base64"}],
            "explode": {"elements": "$.data"},
        },
        [json.dumps({"dev": "a", "data": b64encode(b"[%d, 2.5]" % at).decode()}).encode() for at in range(9)],
        [b"{", b'{"dev":"a","data":"{"}', b'{"dev":"a"}'],
        has_columns=False,
    ),
    "json, utf-16": lambda: FormatUnderTest(
        {"schema": {"dev": "string", "t": "double"}, "charset": "utf-16"},
        [json.dumps({"dev": f"\u00e4{at}", "t": at / 4}, ensure_ascii=False).encode("utf-16") for at in range(9)],
        [b"{", b'{"dev":"a","t":1}', b"\xff\xfe{"],
        has_columns=False,
    ),
    "json, latin-1": lambda: FormatUnderTest(
        {"schema": {"dev": "string", "t": {"type": "double", "from": "$.x.t"}}, "charset": "latin-1"},
        [
            json.dumps({"dev": f"\u00e4{at}", "x": {"t": at / 4}}, ensure_ascii=False).encode("latin-1")
            for at in range(9)
        ],
        [b"{"],
    ),
    "json, first time and step": lambda: FormatUnderTest(
        {
            "schema": {
                "dev": "string",
                "at": {"type": "timestamp", "unit": "s"},
                "g": {"type": "double", "from": "$.g"},
            },
            "explode": {"elements": "$.g", "time": "at", "step": "100ms"},
        },
        [json.dumps({"dev": "a", "at": 1_764_000_000 + at, "g": [1, at / 4, 3]}).encode() for at in range(9)],
        [b"{", b'{"dev":"a","at":true,"g":[1,2]}', b'{"dev":"a","at":1764000000,"g":[1,"x"]}', b'{"dev":"a","g":[1]}'],
    ),
    "value": lambda: of_way("value", b"x", b"", sample=b"1.5\n2.5\n3\n"),
    "raw": lambda: of_way("raw", b"\xff"),
    "csv": lambda: of_way("csv", b"a,b", b'"', b"\xff" * 3, sample=lines("csv")),
    "msgpack": lambda: of_way("msgpack", b"\xc1", b"\x90", b"", topic=of_way("msgpack").good),
    "cbor": lambda: of_way("cbor", b"\xff", b"\x80", b"", topic=of_way("cbor").good),
    "influx": lambda: of_way("influx", b"m", b"# no", b"\xff x=1", has_columns=False, sample=lines("influx")),
    "avro": lambda: of_way("avro", b"", b"\x02", sample=avro_file()),
    "avro, registry": lambda: of_way("avro, registry", b"", b"\x01" * 9, schemas=SCHEMAS),
    "protobuf": lambda: of_way("protobuf", b"\xff", b"\x0a\x05a"),
    "debezium": lambda: of_way("debezium", b"{}", b'{"op":"x"}', b"[]", has_columns=False),
    "otlp": lambda: FormatUnderTest(
        {"format": "otlp", **TELEMETRY}, [protobuf(OTLP), json.dumps(OTLP).encode()], [b"{", b"\xff"], has_columns=False
    ),
    "prometheus": lambda: FormatUnderTest(
        {"format": "prometheus", **TELEMETRY},
        [write_request(({"__name__": "up", "job": job}, [(1.0, 1_764_000_000_000)])) for job in "ab"],
        [b"", b"\xff\xff"],
        has_columns=False,
    ),
    "senml": lambda: FormatUnderTest(
        {
            "format": "senml",
            "schema": {"name": "string", "time": "timestamp?", "value": "double?", "string": "string?"},
        },
        [senml(at) for at in range(20)],
        [
            b"",
            b"1",
            b"[1]",
            b"{",
            b'[{"v":1}]',
            b'[{"n":"a","v":"1"}]',
            b'[{"n":"a","v":1,"vs":"x"}]',
            b'[{"n":"a","v":1,"x_":1}]',
        ],
        has_columns=False,
        sample=b"\n".join(map(senml, range(20))),
        topic=[senml(at) for at in range(20)],
    ),
    "struct": lambda: FormatUnderTest(
        {
            "format": "struct",
            "struct": {
                "members": [
                    {"name": "id", "type": "bytes", "length": 2},
                    {"name": "at", "type": "uint32"},
                    {"name": "t", "type": "int16", "scale": 0.01, "missing": 32_767},
                    {"type": "uint8", "bits": {"low": 7, "mode": [0, 3]}},
                    {"name": "bar", "type": "float32", "byte_order": "little"},
                ]
            },
            "schema": {
                "id": "string",
                "at": {"type": "timestamp", "unit": "s"},
                "celsius": {"type": "double", "required": False, "from": "$.t"},
                "low": "boolean",
                "mode": "integer",
                "bar": "double",
            },
        },
        [struct_frame(at) for at in range(-20, 20)],
        [b"", b"x" * 12, b"x" * 14, struct_frame(1)[:9] + b"\xff" * 4],
    ),
    TOY: frames,
}


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_toys(monkeypatch, TOY)
    yield
    forget_toys(monkeypatch)


def test_every_format_is_under_test() -> None:
    # What a message of Sparkplug means depends on those before it: `tests/property/test_sparkplug_columns.py` checks it.
    assert {name.partition(",")[0] for name in CASES} | {"sparkplug"} == {*FORMATS, TOY}


@pytest.mark.guarantee(
    "G875",
    "A format reads a record in the same way alone, among other records, and on its fast path. A record that it can't "
    "read becomes a dead letter with a reason. Built-in formats and formats of packages keep the same contract.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@pytest.mark.parametrize("name", CASES)
def test_a_format_keeps_its_contract(name: str) -> None:
    check_format(CASES[name]())


def test_what_gateways_import_of_formats_is_light() -> None:
    modules = [*(module_of(name, "format") for name in FORMATS), "acme_frames.format"]
    program = f"import sys; sys.path.append({str(PLUGINS / TOY)!r})\nimport {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=stretched(60)
    )
    assert not {"pydantic", "numpy", "pyarrow", "fastavro", "google.protobuf", "cbor2"} & set(done.stdout.split())
