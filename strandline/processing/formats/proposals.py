"""Proposes the document of a stream from a sample of its records: a file, or records of a topic. Each format examines the
sample."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import pyarrow as pa

from strandline.core.charsets import from_utf8, to_utf8
from strandline.core.streams.format_registry import all_forms
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.format import Format
from strandline.processing.formats.inference.sample import (
    SAMPLE_RECORDS_MAX,
    Proposal,
    Proposed,
    Sample,
    read_json,
)
from strandline.processing.formats.inference.schemas import NoSampleError
from strandline.processing.formats.inference.time_order import event_time_of, time_notes
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.event_time import EventTimeSource

__all__ = [
    "SAMPLE_RECORDS_MAX",
    "NoSampleError",
    "Proposal",
    "infer_from_topic",
    "infer_sample",
    "infer_stream",
    "infer_topic_sample",
]

_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\f\r")
"""Bytes that text doesn't contain."""
_WINDOWS = frozenset(range(0x80, 0xA0))
"""Bytes that are characters in windows-1252, and control characters in Latin-1."""


def infer_stream(name: str, sample: bytes) -> Proposal:
    """Propose a document for the stream: format, fields with their types, units and paths. Raises NoSampleError."""
    return infer_sample(name, sample)[0]


def infer_sample(name: str, sample: bytes) -> Proposed:
    """Propose a document as `infer_stream`. Also return the records of the sample as they would be sent."""
    text, charset = _in_utf8(sample)
    proposal, values = _propose(name, text)
    if charset:
        _set_charset(proposal, charset)
        values = [from_utf8(value, charset) for value in values]
    _try_out(proposal, values)
    return proposal, values


def _in_utf8(sample: bytes) -> tuple[bytes, str]:
    """Return the sample in UTF-8, and its charset. Empty if it is UTF-8, or no text."""
    charset = charset_of(sample)
    text = to_utf8(sample, charset) if charset else None
    return (sample, "") if text is None else (text, charset)


def _set_charset(proposal: Proposal, charset: str) -> None:
    schema = proposal.document.pop("schema")
    proposal.document |= {"charset": charset, "schema": schema}
    if charset == "utf-16":
        proposal.notes.append(
            "the sample is UTF-16, in which files and TCP can't be split into lines; for them, convert it: "
            "iconv -f UTF-16 -t UTF-8 FILE"
        )
    else:
        proposal.notes.append(
            f"the sample is not UTF-8; it is read as {charset}: check names and units outside of ASCII"
        )


def _propose(name: str, sample: bytes) -> Proposed:
    """Return the proposal, and the records of the sample. Raises NoSampleError."""
    examined = Sample(sample)
    if examined.text is not None and not examined.lines:
        raise NoSampleError("the sample is empty; pass some records")
    for form in _formats():
        if (found := form.propose(name, examined)) is not None:
            return found
    try:
        sample.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NoSampleError(
            f"the sample is not text ({error.reason} at byte {error.start}); MessagePack, CBOR, Protobuf and single Avro records "
            "can't be inferred: write the document by hand, see docs/formats.md"
        ) from error
    raise NoSampleError("no format fits the sample; write the document by hand, see docs/formats.md")


def _formats() -> list[Format]:
    """Return the formats, in the order in which they examine a sample."""
    return sorted((form for form in all_forms() if isinstance(form, Format)), key=lambda form: form.sample_rank)


def charset_of(sample: bytes) -> str:
    """Return the charset of a text that isn't UTF-8. Empty if it is UTF-8, or no text."""
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        sample.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\n" in sample and _CONTROLS.isdisjoint(sample):
            return "latin-1" if _WINDOWS.isdisjoint(sample) else "windows-1252"
    return ""


def infer_from_topic(name: str, records: Sequence[bytes], partitions: int, retention: str) -> Proposal:
    """Propose a document for an existing topic from some of its records, with its partitions and its retention.

    Raises NoSampleError.
    """
    return infer_topic_sample(name, records, partitions, retention)[0]


def infer_topic_sample(name: str, records: Sequence[bytes], partitions: int, retention: str) -> Proposed:
    """Propose a document as `infer_from_topic`. Also return the records from which it was inferred."""
    given = [record for record in records if record.strip()][:SAMPLE_RECORDS_MAX]
    if not given:
        raise NoSampleError(
            f"topic {name} contains no record; propose a document from a file: strandline stream infer --sample FILE"
        )
    lines = [line for record in given if (line := _as_line(record)) is not None]
    is_text = 2 * len(lines) >= len(given)
    proposal, values = infer_sample(name, b"\n".join(lines)) if is_text else _of_packed(name, given)
    document, schema = proposal.document, proposal.document.pop("schema")
    proposal.document = document | {"partitions": partitions, "retention": retention, "schema": schema}
    return proposal, values


def _as_line(record: bytes) -> bytes | None:
    """Return the record as one line of text. None if it isn't text."""
    try:
        text = record.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return None
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.dumps(read_json(text)).encode()
    return text.replace("\r", " ").replace("\n", " ").encode()


def _of_packed(name: str, records: list[bytes]) -> Proposed:
    """Return a proposal for records that aren't text."""
    for form in _formats():
        if (found := form.propose_for_records(name, records)) is not None:
            _try_out(*found)
            return found
    raise NoSampleError(
        f"most of {len(records)} records of topic {name} are neither text nor maps in MessagePack or CBOR; write the document by "
        "hand, see docs/formats.md"
    )


def _try_out(proposal: Proposal, values: list[bytes]) -> None:
    """Decode the sample with the proposed document, and add the outcome, and the event time for a pipeline, to the proposal."""
    reader = RowReader(config := record_format(StreamSpec.from_document(proposal.document)))
    fields = [one.name for one in config.fields]
    decoder = Decoder(config.fields, EventTimeSource(None), fields)
    proposal.records = len(values)
    columns: dict[str, list[pa.Array]] = {name: [] for name in fields}
    for rows in reader.parts(values, []):
        decoded = decoder.decode(rows.texts, [0] * len(rows.texts), None)
        proposal.accepted += len(decoded.event_time)
        proposal.rejected += [f"{one.reason}: {one.message}" for one in decoded.rejects]
        for name in fields:
            columns[name].append(decoded.arrays[name])
    proposal.rejected = proposal.rejected[:5]
    if any("event_time:" in note for note in proposal.notes):
        return
    proposal.event_time = proposal.event_time or event_time_of(proposal.document["schema"])
    proposal.notes += time_notes(proposal.event_time, columns, proposal.document)
