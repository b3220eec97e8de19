"""A stream's document, proposed from a sample of its records: a file, or what a topic holds."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import islice
from typing import Any

from strandline.core.documents import COLUMNS_MAX
from strandline.core.field_types import is_nested
from strandline.core.files.avro_files import AvroFile
from strandline.core.json_paths import STEPS_MAX, path_text
from strandline.core.schemas.avro_schemas import read_avro_schema
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import split_one_value
from strandline.processing.formats.change_events import row_of_change
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.inference.csv_sample import CsvSample, read_csv, titles_of, untitled
from strandline.processing.formats.inference.field_types import is_beyond, number_of, type_of
from strandline.processing.formats.inference.parquet_sample import declared_types, read_parquet
from strandline.processing.formats.inference.schemas import NoSampleError, Path, leaves, schema_of, unfitting_note
from strandline.processing.formats.inference.text_hints import hint_of
from strandline.processing.formats.influx_lines import InfluxLines
from strandline.processing.formats.packed_maps import PackedMaps
from strandline.processing.formats.record_fields import Rejection, why_unreadable
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.with_schema.avro_records import AvroRecords, declared_type
from strandline.processing.pipelines.event_time import EventTimeSource

SAMPLE_RECORDS_MAX = 10_000
_AVRO_FILE = b"Obj\x01"
_PARQUET_FILE = b"PAR1"
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\f\r")
"""Bytes that no text has."""


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


def infer_stream(name: str, sample: bytes) -> Proposal:
    """Propose a document for the stream: format, fields with their types, units and paths. Raises NoSampleError."""
    proposal, values = _propose(name, sample)
    _try_out(proposal, values)
    return proposal


def _propose(name: str, sample: bytes) -> tuple[Proposal, list[bytes]]:
    """The proposal, and the records of the sample. Raises NoSampleError."""
    if sample.startswith(_AVRO_FILE):
        return _of_avro_file(name, sample)
    if sample.startswith(_PARQUET_FILE):
        return _of_parquet(name, sample)
    try:
        text = sample.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NoSampleError(_no_text(sample, error)) from error
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()][:SAMPLE_RECORDS_MAX]
    if not lines:
        raise NoSampleError("the sample is empty; give some records")
    if text.lstrip()[0] in "[{":
        return _of_json(name, text, lines)
    if _are_influx(lines):
        return _of_influx(name, lines)
    if (found := read_csv(text, SAMPLE_RECORDS_MAX)) is not None:
        return _of_csv(name, found)
    return _of_values(name, lines)


def _no_text(sample: bytes, error: UnicodeDecodeError) -> str:
    """What a sample is that is no text in UTF-8, and what to do."""
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return (
            "the sample is text in UTF-16, and a stream's texts are in UTF-8; convert it: iconv -f UTF-16 -t UTF-8 FILE"
        )
    if b"\n" in sample and _CONTROLS.isdisjoint(sample):
        byte = sample[error.start]
        return (
            f"the sample is text, but not in UTF-8: byte {error.start:,} is 0x{byte:02x}, '{chr(byte)}' in Latin-1; if that is "
            "right, convert it: iconv -f ISO-8859-1 -t UTF-8 FILE. What the devices send has to be UTF-8, too"
        )
    return (
        f"the sample is no text ({error.reason} at byte {error.start}); MessagePack, CBOR, Protobuf and single records of Avro "
        "can't be inferred: write the document by hand, see docs/formats.md"
    )


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
            maps = list(_readable([one.decode() for one in objects]))
            proposal = _of_objects(name, maps, explodes=False)
            proposal.document["format"] = packed
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
    texts, program = _json_texts(text, lines)
    texts = texts[:SAMPLE_RECORDS_MAX]
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
    if program is not None:
        proposal.notes.append(
            f"the sample is one JSON value; requests by HTTP and pipeline run take it so, and strandline ingest one object a "
            f"line: jq -c {program} FILE"
        )
    if unreadable:
        proposal.notes.append(f"records of the sample that can't be read, and are left out: {unreadable:,}")
    return proposal, [json.dumps(record).encode() for record in records]


def _json_texts(text: str, lines: list[str]) -> tuple[list[str], str | None]:
    """The text of each record: of each element of an array, of one value on several lines, or each line; and by which program of
    jq they would stand one a line, if they don't."""
    found = split_one_value(text.encode())
    if found is None:
        return lines, None
    program = "'.[]'" if text.lstrip()[0] == "[" else "." if len(lines) > 1 else None
    return [one.decode() for one in found], program


def _read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for what no stream takes: a text that can't be read, as one with half of a
    surrogate pair, and a number that no field can hold."""
    if (why := why_unreadable(text.encode())) is not None:
        raise ValueError(why)
    value = json.loads(text, parse_int=number_of)
    json.dumps(value, allow_nan=False)  # raises for infinite numbers
    return value


def _readable(texts: Sequence[str]) -> Iterator[Any]:
    """The values of the texts that `_read_json` reads."""
    for text in texts:
        with contextlib.suppress(ValueError):
            yield _read_json(text)


def _of_objects(
    name: str,
    objects: list[dict[str, Any]],
    *,
    explodes: bool = True,
    declared: Callable[[Path | None], Mapping[Path, str]] | None = None,
) -> Proposal:
    """Of objects. `explodes`: an array of objects may give the rows. `declared`: the types that are known, by the array that
    does."""
    document: dict[str, Any] = {"stream": name, "format": "json"}
    proposal = Proposal(document)
    array = _array_of_rows(objects) if explodes else None
    rows = objects
    if array is not None:
        document["explode"] = path_text(array)
        proposal.notes.append(
            f"each element of {path_text(array)} becomes a row; without explode, take single ones as "
            f"{path_text((*array, 0))}.name"
        )
        rows = [_without(one, array) | element for one in objects for element in _objects_in(_at(one, array))]
    found: dict[Path, list[Any]] = defaultdict(list)
    for row in rows:
        for path, value in leaves(row, ()):
            found[path].append(value)
    types = None if declared is None else declared(array)
    document["schema"] = schema_of(found, len(rows), proposal.notes, is_text=False, declared=types)
    return proposal


def _array_of_rows(objects: list[dict[str, Any]]) -> Path | None:
    """Where most records have an array of objects; of several that with numbers in its objects, and then the most of them."""
    having: Counter[Path] = Counter()
    elements: Counter[Path] = Counter()
    with_numbers = set()
    for one in objects:
        for path, value in leaves(one, ()):
            if (
                isinstance(value, list)
                and len(path) < STEPS_MAX
                and all(isinstance(element, dict) for element in value)
            ):
                having[path] += 1
                elements[path] += len(value)
                if path not in with_numbers and any(map(_has_number, value)):
                    with_numbers.add(path)
    usual = [path for path, count in elements.items() if count and 2 * having[path] >= len(objects)]
    return max(usual, key=lambda path: (path in with_numbers, elements[path]), default=None)


def _has_number(one: dict[str, Any]) -> bool:
    return any(isinstance(value, int | float) and not isinstance(value, bool) for _, value in leaves(one, ()))


def _at(one: Any, path: Path) -> Any:
    """What stands at a path of members; None where it leads nowhere."""
    for step in path:
        one = one.get(step) if isinstance(one, dict) else None
    return one


def _without(one: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """The object without what stands at the path."""
    first, *others = path
    left = {key: value for key, value in one.items() if key != first}
    return (
        left
        if not others or not isinstance(one.get(first), dict)
        else left | {first: _without(one[first], tuple(others))}
    )


def _of_parquet(name: str, sample: bytes) -> tuple[Proposal, list[bytes]]:
    """Of a file of Parquet: its rows as JSON objects, with the types of its schema."""
    rows, schema = read_parquet(sample, SAMPLE_RECORDS_MAX)
    proposal = _of_objects(name, list(map(json.loads, rows)), declared=partial(declared_types, schema))
    proposal.notes.append("a row of the file becomes a JSON object, where a file is read: pipeline run, ingest")
    return proposal, rows


def _of_changes(name: str, events: list[dict[str, Any]]) -> Proposal:
    """Of Debezium's change events: the columns of their rows, and what happened to them when."""
    found: dict[Path, list[Any]] = defaultdict(list)
    for event in events:
        for path, value in leaves(row_of_change(event) or {}, ()):
            found[path].append(value)
    proposal = Proposal({"stream": name, "format": "debezium"})
    schema = schema_of(found, len(events), proposal.notes, is_text=False, fields_max=COLUMNS_MAX - 2)  # two are added
    for field_name, spec in schema.items():  # a column that is nested deeper, or has no field's name
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
        file = AvroFile(BytesIO(sample))
        schema: Any = fastavro.parse_schema(file.schema_as_written)
        for record in islice(file.records(), SAMPLE_RECORDS_MAX):
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
    read_schema = read_avro_schema(text)
    types = {path: kind for path in found if (kind := declared_type(read_schema, path)) and not is_nested(kind)}
    fields = schema_of(found, len(values), proposal.notes, is_text=False, declared=types)
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
    schema = schema_of(found, good, proposal.notes, is_text=False)
    times = found[("time",)]
    if times and all(isinstance(value, int) for value in times):
        proposed = schema["time"]
        unit = proposed.get("unit", "ns") if isinstance(proposed, dict) else "ns"
        schema["time"] = {"type": "timestamp?" if len(times) < good else "timestamp", "unit": unit}
        if unit != "ns":
            proposal.notes.append(
                f"time counts {unit} in these lines. A write request by HTTP that says so (?precision={unit}) brings ns: where "
                "all lines come that way, write unit: ns"
            )
    proposal.document["schema"] = schema
    return proposal, values


def _of_csv(name: str, sample: CsvSample) -> tuple[Proposal, list[bytes]]:
    document: dict[str, Any] = {"stream": name, "format": "csv"}
    proposal = Proposal(document)
    rows, lines = sample.rows, sample.texts
    if len(lines) > len(rows):
        proposal.notes.append(
            f"rows with more or fewer than {len(rows[0])} values: {len(lines) - len(rows):,} of {len(lines):,}; they become dead "
            "letters"
        )
    if sample.comments:
        proposal.notes.append(
            f"comments (#) above the rows, which no reader of files leaves out: {sample.comments:,}; take them away: "
            f"tail -n +{sample.comments + 1} FILE"
        )
    titles = titles_of(rows)
    if titles is not None:
        rows, lines = rows[1:], lines[1:]
        proposal.notes.append("the first line holds the names of the columns; don't send it")
    else:
        proposal.notes.append("no line holds the names of the columns: put better ones")
    names = titles or [untitled(at) for at in range(len(rows[0]))]
    rows = [row for row in rows if not any(map(is_beyond, row))] or rows
    found: dict[Path, list[Any]] = {(key,): [row[at] for row in rows if row[at]] for at, key in enumerate(names)}
    for values in found.values():
        if 2 * sum(value.startswith(" ") for value in values) > len(values):
            shown = next(value for value in values if value.startswith(" "))
            proposal.notes.append(
                f"values begin with a blank, as {json.dumps(shown)}, which is part of them: send them without it, or take it "
                "away by trim"
            )
            break
    empty: dict[Path, str] = {path: "string" for path, values in found.items() if not values}
    document["schema"] = schema_of(found, len(rows), proposal.notes, is_text=True, declared=empty)
    for spec in document["schema"].values():
        if isinstance(spec, dict):
            spec.pop("from", None)
    if sample.delimiter != ",":
        document["csv"] = {"delimiter": sample.delimiter}
    return proposal, [line.encode() for line in lines]


def _of_values(name: str, lines: list[str]) -> tuple[Proposal, list[bytes]]:
    usual = [line for line in lines if not is_beyond(line)] or lines
    proposed = type_of("value", [line.strip() for line in usual], is_text=True)
    proposal = Proposal({"stream": name, "format": "value", "schema": {"value": proposed.spec["type"]}})
    if proposed.unfitting:
        proposal.notes.append(unfitting_note("value", proposed.spec, usual, proposed.unfitting))
    if proposed.spec["type"] == "string" and (hint := hint_of("value", usual)) is not None:
        proposal.notes.append(hint)
    proposal.notes.append(
        "add a field for what tells the devices apart, from the topic (mqtt: {fields}) or the URL's query"
    )
    proposal.notes.append("there is no time in the records: event_time: {from: log}")
    return proposal, [line.encode() for line in lines]


def _objects_in(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
