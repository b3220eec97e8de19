"""A stream's document, proposed from a sample of its records: a file, or what a topic holds."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from itertools import islice
from math import isfinite
from typing import Any

from strandline.core.document_values import FIELD_NAME, RESERVED_FIELDS
from strandline.core.documents import COLUMNS_MAX
from strandline.core.errors import StrandlineError
from strandline.core.field_types import WHOLE_RANGES
from strandline.core.files.text_rows import RECORD_BYTES_MAX, rows_of_csv
from strandline.core.json_paths import STEPS_MAX, parse_json_path
from strandline.core.schemas.avro_schemas import read_avro_schema
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.change_events import row_of_change
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.influx_lines import InfluxLines
from strandline.processing.formats.json_rows import path_text
from strandline.processing.formats.packed_maps import PackedMaps
from strandline.processing.formats.record_fields import Rejection, why_unreadable
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.text_values import is_number_text
from strandline.processing.formats.timestamps import PER_SECOND, parse_timestamp
from strandline.processing.formats.with_schema.avro_records import AvroRecords, declared_type
from strandline.processing.pipelines.event_time import EventTimeSource

SAMPLE_RECORDS_MAX = 10_000
_AVRO_FILE = b"Obj\x01"
_DELIMITERS = ";,\t|"
_TIME_NAME = re.compile(
    r"(?i)(?:^|_|\b)(?:t|ts|epoch|time|timestamp|date|datetime|at|when|created|measured|ns)(?:_?(?:s|ms|us|ns))?$"
)
_OTHER_TIME = re.compile(r"\d{1,4}[./-](\d{1,2}|[A-Za-z]{3,9})[./-]\d{1,4}[ T]+\d{1,2}:\d{2}")
_OTHER_TIME_REMEDY = "read it with to_timestamp(text, pattern), as docs/formats.md shows (Times in other forms)"
_SOME_ZONE = "Asia/Kolkata"
"""One that was never UTC."""
_CENTURY_S = (946_684_800, 4_102_444_800)
"""2000 to 2099: what a number may be that is taken for a time."""


class NoSampleError(StrandlineError):
    """Nothing can be told from the sample."""

    code = "no_sample"


@dataclass
class Proposal:
    """A document for the sample, and what a person should know about it."""

    document: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    records: int = 0
    accepted: int = 0
    """Rows that the document accepts."""
    rejected: list[str] = field(default_factory=list)
    """The reasons of the first rows that it rejects."""


Path = tuple[str | int, ...]


def infer_stream(name: str, sample: bytes) -> Proposal:
    """Propose a document for the stream: format, fields with their types, units and paths. Raises NoSampleError."""
    if sample.startswith(_AVRO_FILE):
        proposal, values = _of_avro_file(name, sample)
        _try_out(proposal, values)
        return proposal
    try:
        text = sample.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NoSampleError(
            f"the sample is no text ({error.reason} at byte {error.start}); MessagePack, CBOR, Protobuf and single records of "
            "Avro can't be inferred: write the document by hand, see docs/formats.md"
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()][:SAMPLE_RECORDS_MAX]
    if not lines:
        raise NoSampleError("the sample is empty; give some records")
    if text.lstrip()[0] in "[{":
        proposal, values = _of_json(name, text, lines)
    elif _are_influx(lines):
        proposal, values = _of_influx(name, lines)
    elif (found := _read_csv(text)) is not None:
        proposal, values = _of_csv(name, *found)
    else:
        proposal, values = _of_values(name, lines)
    _try_out(proposal, values)
    return proposal


def infer_from_topic(name: str, records: Sequence[bytes], partitions: int, retention: str) -> Proposal:
    """Propose a document for a topic that is there: from some of its records, with its partitions and its retention.

    Raises NoSampleError.
    """
    given = [record for record in records if record.strip()][:SAMPLE_RECORDS_MAX]
    if not given:
        raise NoSampleError(
            f"topic {name} holds no record; propose a document from a file: strandline stream infer --sample FILE"
        )
    lines = [line for record in given if (line := _as_line(record)) is not None]
    proposal = infer_stream(name, b"\n".join(lines)) if 2 * len(lines) >= len(given) else _of_packed(name, given)
    document, schema = proposal.document, proposal.document.pop("schema")
    proposal.document = document | {"partitions": partitions, "retention": retention, "schema": schema}
    return proposal


def _as_line(record: bytes) -> bytes | None:
    """The record as one line of text; None if it is no text."""
    try:
        text = record.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return None
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.dumps(_read_json(text)).encode()
    return text.replace("\r", " ").replace("\n", " ").encode()


def _of_packed(name: str, records: list[bytes]) -> Proposal:
    """Of maps in MessagePack or CBOR."""
    for packed, reader in (("msgpack", PackedMaps.of_msgpack()), ("cbor", PackedMaps.of_cbor())):
        objects = [one for one in reader.objects(records, [None] * len(records)) if isinstance(one, bytes)]
        if 2 * len(objects) >= len(records):
            proposal = infer_stream(name, b"\n".join(objects))
            proposal.document["format"] = packed
            proposal.document.pop("explode", None)
            proposal.accepted, proposal.rejected = 0, []
            _try_out(proposal, records)
            return proposal
    raise NoSampleError(
        f"most of {len(records)} records of topic {name} are neither text nor maps in MessagePack or CBOR; write the document by "
        "hand, see docs/formats.md"
    )


def _try_out(proposal: Proposal, values: list[bytes]) -> None:
    """Decode the sample by the proposed document."""
    reader = RowReader(config := record_format(StreamSpec.from_document(proposal.document)))
    decoder = Decoder(config.fields, EventTimeSource(None), [])
    proposal.records = len(values)
    for rows in reader.parts(values, []):
        decoded = decoder.decode(rows.texts, [0] * len(rows.texts), None)
        proposal.accepted += len(decoded.event_time)
        proposal.rejected += [f"{one.reason}: {one.message}" for one in decoded.rejects]
    proposal.rejected = proposal.rejected[:5]


# --- What a record is


def _of_json(name: str, text: str, lines: list[str]) -> tuple[Proposal, list[bytes]]:
    texts = _json_texts(text, lines)[:SAMPLE_RECORDS_MAX]
    records = list(_readable(texts))
    unreadable = len(texts) - len(records)
    if unreadable > len(records):
        raise NoSampleError(
            "the sample looks like JSON and most lines are none that can be read; give one object a line"
        )
    objects = [record for record in records if isinstance(record, dict)]
    if not objects:
        raise NoSampleError("the sample holds no JSON object; give one object a line, or an array of objects")
    if all(row_of_change(one) is not None for one in objects):
        proposal, records = _of_changes(name, objects), objects
    else:
        proposal = _of_objects(name, objects)
    if unreadable:
        proposal.notes.append(f"records of the sample that can't be read, and are left out: {unreadable:,}")
    return proposal, [json.dumps(record).encode() for record in records]


def _json_texts(text: str, lines: list[str]) -> list[str]:
    """The text of each record: of each element of an array, of one value on several lines, or each line."""
    try:
        whole = json.loads(text, parse_int=_number)
        return [json.dumps(one) for one in whole] if isinstance(whole, list) else [text]
    except (ValueError, RecursionError):
        return lines


def _read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for what no stream takes: a text that can't be read, as one with half of a
    surrogate pair, and a number that no field can hold."""
    if (why := why_unreadable(text.encode())) is not None:
        raise ValueError(why)
    value = json.loads(text, parse_int=_number)
    json.dumps(value, allow_nan=False)  # raises for infinite numbers
    return value


def _number(text: str) -> int | float:
    """A number as JSON writes it; infinite if it is one that no field can hold."""
    return int(text) if isfinite(number := float(text)) and text.removeprefix("-").isdigit() else number


def _readable(texts: Sequence[str]) -> Iterator[Any]:
    """The values of the texts that `_read_json` reads."""
    for text in texts:
        with contextlib.suppress(ValueError):
            yield _read_json(text)


def _of_objects(name: str, objects: list[dict[str, Any]]) -> Proposal:
    document: dict[str, Any] = {"stream": name, "format": "json"}
    proposal = Proposal(document)
    array = next((key for key, value in objects[0].items() if _is_list_of_objects(value)), None)
    rows = objects
    if array is not None:
        document["explode"] = path_text((array,))
        proposal.notes.append(
            f"each element of {array!r} becomes a row; without explode, take single ones as {path_text((array, 0))}.name"
        )
        beside = [{key: value for key, value in one.items() if key != array} for one in objects]
        rows = [
            row | element for one, row in zip(objects, beside, strict=True) for element in _objects_in(one.get(array))
        ]
    found: dict[Path, list[Any]] = defaultdict(list)
    for row in rows:
        for path, value in leaves(row, ()):
            found[path].append(value)
    document["schema"] = _schema(found, len(rows), proposal, is_text=False)
    return proposal


def _of_changes(name: str, events: list[dict[str, Any]]) -> Proposal:
    """Of Debezium's change events: the columns of their rows, and what happened to them when."""
    found: dict[Path, list[Any]] = defaultdict(list)
    for event in events:
        for path, value in leaves(row_of_change(event) or {}, ()):
            found[path].append(value)
    proposal = Proposal({"stream": name, "format": "debezium"})
    schema = _schema(found, len(events), proposal, is_text=False, fields_max=COLUMNS_MAX - 2)  # two are added
    for field_name, spec in schema.items():  # a column that is further in, or has no field's name
        if isinstance(spec, dict) and "from" in spec:
            schema[field_name] = spec | {"from": f"$.row{spec['from'][1:]}"}
    for field_name, kind, leads in (("op", "string", "$.op"), ("changed", "timestamp", "$.source.ts_ms")):
        if field_name not in schema:
            schema[field_name] = {"type": kind, "from": leads}
    proposal.document["schema"] = schema
    proposal.notes.append("op is c, r, u or d (created, read by a snapshot, updated, deleted): where: op <> 'd'")
    return proposal


def _of_avro_file(name: str, sample: bytes) -> tuple[Proposal, list[bytes]]:
    """Of a file of Avro: its schema, and its records as they would be sent."""
    import fastavro

    values = []
    try:
        file = fastavro.reader(BytesIO(sample))
        schema: Any = file.writer_schema
        for record in islice(file, SAMPLE_RECORDS_MAX):
            written = BytesIO()
            fastavro.schemaless_writer(written, schema, record)
            values.append(written.getvalue())
        text = json.dumps(_plain_schema(schema))
        objects = AvroRecords((), None, text).objects(values, [None] * len(values))
    except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise NoSampleError(
            f"the sample is no file of Avro that can be read ({error or type(error).__name__})"
        ) from error
    found: dict[Path, list[Any]] = defaultdict(list)
    for one in objects:
        for path, value in leaves(json.loads(one) if isinstance(one, bytes) else {}, ()):
            found[path].append(value)
    proposal = Proposal({"stream": name, "format": "avro", "avro": {"schema": text}})
    fields = _schema(found, len(values), proposal, is_text=False)
    for field_name, spec in fields.items():
        spec = dict(spec) if isinstance(spec, dict) else {"type": spec}
        path = parse_json_path(spec.get("from", f"$.{field_name}"))
        if (declared := declared_type(read_avro_schema(text), path)) is not None:
            spec["type"] = declared + "?" * spec["type"].endswith("?")
            spec.pop("unit", None)
        fields[field_name] = spec if len(spec) > 1 else spec["type"]
    proposal.document["schema"] = fields
    proposal.notes.append("send each record by itself, without the file's header; or use a schema registry")
    return proposal, values


def _plain_schema(schema: Any) -> Any:
    """A schema without what the library adds to it."""
    if isinstance(schema, dict):
        return {key: _plain_schema(value) for key, value in schema.items() if not key.startswith("__")}
    return [_plain_schema(one) for one in schema] if isinstance(schema, list) else schema


def _are_influx(lines: list[str]) -> bool:
    objects = InfluxLines().objects([line.encode() for line in lines], [None] * len(lines))
    return sum(not isinstance(one, Rejection) for one in objects) * 2 > len(lines)


def _of_influx(name: str, lines: list[str]) -> tuple[Proposal, list[bytes]]:
    values = [line.encode() for line in lines]
    found: dict[Path, list[Any]] = defaultdict(list)
    objects = InfluxLines().objects(values, [None] * len(values))
    good = 0
    for members in _readable([one.decode() for one in objects if isinstance(one, bytes)]):
        good += 1
        for key, value in members.items():
            found[(key,)].append(value)
    proposal = Proposal({"stream": name, "format": "influx"})
    schema = _schema(found, good, proposal, is_text=False)
    if "time" in schema:
        schema["time"] = {"type": "timestamp?" if len(found[("time",)]) < good else "timestamp", "unit": "ns"}
    proposal.document["schema"] = schema
    return proposal, values


def _read_csv(text: str) -> tuple[str, list[str], list[list[str]]] | None:
    """The delimiter, the rows as they are, and their values, as many in each row; None if there is no such delimiter."""
    lines = text.encode().split(b"\n")
    for delimiter in _DELIMITERS:
        whole = islice(rows_of_csv(lines, delimiter.encode(), RECORD_BYTES_MAX), SAMPLE_RECORDS_MAX)
        texts = [row.decode() for row, _ in whole if isinstance(row, bytes)]
        try:
            rows = [next(csv.reader(StringIO(row, newline=""), delimiter=delimiter)) for row in texts]
        except csv.Error:
            continue
        if len({len(row) for row in rows}) == 1 and len(rows[0]) > 1:
            return delimiter, texts, rows
    return None


def _of_csv(name: str, delimiter: str, lines: list[str], rows: list[list[str]]) -> tuple[Proposal, list[bytes]]:
    document: dict[str, Any] = {"stream": name, "format": "csv"}
    proposal = Proposal(document)
    has_head = len(rows) > 1 and not any(map(_is_value, rows[0])) and any(map(_is_value, rows[1]))
    names = rows[0] if has_head else [f"column_{at + 1}" for at in range(len(rows[0]))]
    if has_head:
        rows, lines = rows[1:], lines[1:]
        proposal.notes.append("the first line holds the names of the columns; don't send it")
    else:
        proposal.notes.append("no line holds the names of the columns: put better ones")
    rows = [row for row in rows if not any(map(_is_beyond, row))] or rows
    found: dict[Path, list[Any]] = {(key,): [row[at] for row in rows if row[at]] for at, key in enumerate(names)}
    document["schema"] = _schema(found, len(rows), proposal, is_text=True)
    for spec in document["schema"].values():
        if isinstance(spec, dict):
            spec.pop("from", None)
    if delimiter != ",":
        document["csv"] = {"delimiter": delimiter}
    return proposal, [line.encode() for line in lines]


def _of_values(name: str, lines: list[str]) -> tuple[Proposal, list[bytes]]:
    usual = [line for line in lines if not _is_beyond(line)] or lines
    proposal = Proposal(
        {"stream": name, "format": "value", "schema": {"value": _type_of("value", usual, is_text=True)["type"]}}
    )
    proposal.notes.append(
        "add a field for what tells the devices apart, from the topic (mqtt: {fields}) or the URL's query"
    )
    proposal.notes.append("there is no time in the records: event_time: {from: log}")
    return proposal, [line.encode() for line in lines]


# --- What a field is


def leaves(value: dict[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Every value that is no object; lists are one value each."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key), inner


def _schema(
    found: dict[Path, list[Any]], rows: int, proposal: Proposal, *, is_text: bool, fields_max: int = COLUMNS_MAX
) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    times = []
    if len(found) > fields_max:
        proposal.notes.append(f"{len(found) - fields_max:,} fields that the fewest records have are left out")
        found = dict(sorted(found.items(), key=lambda one: -len(one[1]))[:fields_max])
    for path, values in found.items():
        if len(path) >= STEPS_MAX:
            proposal.notes.append(f"{path_text(path)} has more steps than a path may have; left out")
            continue
        known = [value for value in values if value is not None]
        if not known or any(isinstance(value, list) for value in known):
            what = "is null throughout" if not known else "is an array: take single elements by a path, as $.name[0]"
            proposal.notes.append(f"{path_text(path)} {what}; left out")
            continue
        name = _field_name(path, schema)
        spec = _type_of(str(path[-1]), known, is_text=is_text)
        if len(known) < rows:
            spec["required"] = False
        if path != (name,):
            spec["from"] = path_text(path)
        if spec["type"] == "timestamp" and len(known) == rows:
            times.append(name)
        if spec["type"] == "timestamp" and any(isinstance(value, str) and _is_of_a_clock(value) for value in known):
            proposal.notes.append(
                f"{name} names no time zone, so it is UTC; if it is not, add tz: {_SOME_ZONE} or another"
            )
        if spec["type"] == "string" and all(_OTHER_TIME.search(str(value)) for value in known):
            proposal.notes.append(f"{name} seems to be a time in another form than ISO 8601: {_OTHER_TIME_REMEDY}")
        schema[name] = spec if len(spec) > 1 else spec["type"]
        if set(spec) == {"type", "required"}:
            schema[name] = f"{spec['type']}?"
    if not schema:
        raise NoSampleError("the sample's records hold no value that a field can have")
    if times:
        proposal.notes.append(f"for a pipeline: event_time: {{field: {times[0]}, delay: 10s}}")
    else:
        proposal.notes.append("no field is a time in every record; for a pipeline: event_time: {from: log}")
    return schema


def _is_of_a_clock(text: str) -> bool:
    """Whether the time depends on where the clock hangs."""
    return parse_timestamp(text, "ms") != parse_timestamp(text, "ms", _SOME_ZONE)


def _field_name(path: Path, taken: dict[str, Any]) -> str:
    """The last name on the path, made a field name; with those before it where that is taken."""
    steps = [re.sub(r"\W", "_", str(step), flags=re.ASCII) for step in path]
    lower = {name.lower() for name in taken}
    for count in range(1, len(steps) + 1):
        name = "_".join(steps[-count:])
        name = name if FIELD_NAME.fullmatch(name) and not name.startswith("_") else f"f_{name.lstrip('_')}"[:200]
        if name.lower() not in lower and name.lower() not in RESERVED_FIELDS:
            return name
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}".lower() not in lower)


def _type_of(name: str, values: Sequence[Any], *, is_text: bool) -> dict[str, Any]:
    """The type that holds all of the values. `is_text`: they are texts whatever they mean."""
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values):
        read = [_value_of(text) for text in texts]
        if any(isinstance(value, str) for value in read):
            are_times = all(isinstance(value, str) and parse_timestamp(value, "ms") is not None for value in read)
            return {"type": "timestamp" if are_times else "string"}
        spec = _type_of(name, read, is_text=False)
        return spec if is_text else spec | {"text": True}
    if all(isinstance(value, bool) for value in values):
        return {"type": "boolean"}
    if any(isinstance(value, bool | str) for value in values):
        return {"type": "string"}
    if _TIME_NAME.search(name):
        for unit, per_second in PER_SECOND.items():
            if all(_CENTURY_S[0] <= value / per_second < _CENTURY_S[1] for value in values):
                return {"type": "timestamp", "unit": unit}
    first, last = WHOLE_RANGES["long"]
    is_whole = all(isinstance(value, int) and first <= value <= last for value in values)
    return {"type": "long" if is_whole else "double"}


def _value_of(text: str) -> Any:
    """What a text means: a number that a field can hold, true or false, or itself."""
    stripped = text.strip()
    if stripped in ("true", "false"):
        return stripped == "true"
    return _number(stripped) if is_number_text(stripped) and not _is_beyond(stripped) else text


def _is_beyond(text: str) -> bool:
    """Whether a text is a number that no field can hold."""
    return is_number_text(text.strip()) and not isfinite(float(text))


def _is_value(text: str) -> bool:
    """Whether a text is something else than a name: empty, a number, true or false, or a time."""
    return not text or not isinstance(_value_of(text), str) or parse_timestamp(text, "ms") is not None


def _objects_in(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(one, dict) for one in value)
