"""Framing: split the body of a request into its records, and find each record's Kafka key.

Framing is not parsing. A record keeps the sender's bytes: a record that is not JSON is persisted too, and becomes a
dead letter later. A body is refused only if its records can't be separated. Nothing here recurses, so no depth of
nesting can break it.

A new format of bodies with several records becomes a `Form`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from strandline.core.charsets import from_utf8, to_utf8
from strandline.core.errors import PermanentError
from strandline.core.files.text_rows import BYTE_ORDER_MARK
from strandline.core.streams.format import PLAIN, Framing
from strandline.ingest.gateway.cloud_events import identity_of_event
from strandline.log.record_key import Record, key_finder

RECORDS_MAX = 100_000
"""Maximum number of records or lines in one request: each costs a few hundred bytes of memory, however short it is."""
_WHITESPACE = b" \t\r\n"  # whitespace of JSON; bytes.strip() alone would strip more
_SPACE = ord(" ")
_COMMAS_MAX = 1_000_000
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""A complete string, or one structural character outside of strings. Possessive, so it never backtracks."""
_COMMA, _QUOTE = b',"'
_CLOSER = {ord("["): ord("]"), ord("{"): ord("}")}


class Unframable(PermanentError):
    """The records of the body can't be separated. Nothing of it was persisted."""

    code = "bad_request"


class TooLarge(PermanentError):
    """The body, or one record in it, exceeds a limit. Nothing of it was persisted."""

    code = "too_large"


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record of a batch that the gateway can't accept. It would be refused again if it were resent."""

    index: int
    """Index among the records of the request, from 0."""
    reason: str
    """Code for programs, for example `too_large`."""
    detail: str


class Framed(NamedTuple):
    """The records of one request."""

    records: list[Record]
    """Records that can be appended, in the order of the request."""
    refused: list[RefusedRecord]
    is_batch: bool
    """True if the form of the request allows several records, even if it has one."""
    identities: list[bytes | None] | None = None
    """Identity of each of `records`, in forms whose records can have one. None for the other forms."""

    def indexes(self) -> list[int]:
        """Return the index of each of `records` in the request, from 0."""
        refused = {record.index for record in self.refused}
        return [index for index in range(len(self.records) + len(refused)) if index not in refused]


class Form(Enum):
    """Structure of a body that contains records."""

    JSON = "json"
    """One object, or an array of any values."""
    LINES = "lines"
    """One record per line (NDJSON, JSON Lines, CSV, bare values, InfluxDB's protocol)."""
    WHOLE = "whole"
    """One record."""
    EVENT = "event"
    """One CloudEvent in JSON, with its attributes."""
    EVENTS = "events"
    """An array of CloudEvents."""
    FORM = "form"
    """Parameters of a form, or another body that a sender declares as a form."""
    QUERY = "query"
    """No body; the record is the query of the URL."""
    UNTYPED = "untyped"
    """A body without a content type."""


FORM_OF_CONTENT_TYPE = {
    "application/json": Form.JSON,
    "application/senml+json": Form.WHOLE,
    "application/x-ndjson": Form.LINES,
    "application/ndjson": Form.LINES,
    "application/jsonlines": Form.LINES,
    "application/jsonl": Form.LINES,
    "text/plain": Form.LINES,
    "text/csv": Form.LINES,
    "application/msgpack": Form.WHOLE,
    "application/vnd.msgpack": Form.WHOLE,
    "application/cbor": Form.WHOLE,
    "application/avro": Form.WHOLE,
    "avro/binary": Form.WHOLE,
    "application/x-protobuf": Form.WHOLE,
    "application/protobuf": Form.WHOLE,
    "application/octet-stream": Form.WHOLE,
    "application/cloudevents+json": Form.EVENT,
    "application/cloudevents-batch+json": Form.EVENTS,
    "application/x-www-form-urlencoded": Form.FORM,
}


def frame(body: bytes, form: Form, key_field: str | None, record_bytes_max: int, framing: Framing = PLAIN) -> Framed:
    """Return the records of a body; an empty array has none.

    Records that are too large are left out and listed as refused. A byte order mark at the beginning isn't part of a
    record.

    Args: framing: Framing of the stream's format. If a record is an array, a body that is an array of values is one
    record.

    Raises Unframable: There is no record, or the records can't be separated. TooLarge: Every record is too large.
    """
    if form is not Form.WHOLE:
        body = body.removeprefix(BYTE_ORDER_MARK)
    values = _split_charset(body, form, framing) if framing.charset else _split(body, form, framing)
    refused: list[RefusedRecord] = []
    if len(body) > record_bytes_max:
        refused = [
            RefusedRecord(index, TooLarge.code, f"it has {len(value)} bytes, the limit is {record_bytes_max}")
            for index, value in enumerate(values)
            if len(value) > record_bytes_max
        ]
    if refused:
        if len(refused) == len(values):
            raise TooLarge(
                f"record 1 of {len(values)} has {len(values[0])} bytes, the limit is {record_bytes_max}; "
                f"nothing of this request was persisted: send smaller records"
            )
        values = [value for value in values if len(value) <= record_bytes_max]
    is_batch = form in (Form.LINES, Form.EVENTS) or values != [body]
    identities = [identity_of_event(value) for value in values] if form in (Form.EVENT, Form.EVENTS) else None
    if key_field is None:
        return Framed([(value, None) for value in values], refused, is_batch, identities)
    find_key = key_finder(key_field)
    return Framed([(value, find_key(value)) for value in values], refused, is_batch, identities)


def _split_charset(body: bytes, form: Form, framing: Framing) -> list[bytes]:
    """Return the records of a body in another charset, each in this charset."""
    if form is Form.WHOLE:
        return _split(body, form, framing)
    text = to_utf8(body, framing.charset)
    if text is None:
        raise Unframable(
            f"the body isn't text in {framing.charset}, the charset of the stream; send it in this charset"
        )
    values = _split(text, form, framing)
    return [body] if values == [text] else [from_utf8(value, framing.charset) for value in values]


def _split(body: bytes, form: Form, framing: Framing) -> list[bytes]:
    if form is Form.LINES:
        return split_lines(body, framing.split_lines)
    if form in (Form.WHOLE, Form.EVENT):
        if not body:
            raise Unframable("the body is empty; send one record")
        return [body]
    start = body.lstrip(_WHITESPACE)[:1]
    if form is Form.EVENTS:
        if start != b"[":
            raise Unframable("a batch of CloudEvents is a JSON array; send one event as application/cloudevents+json")
        return split_json(body)
    if framing.is_of_arrays and start == b"[":
        elements = split_json(body)
        return elements if elements and all(one[:1] == b"[" for one in elements) else [body]
    return [body] if framing.takes_bare_json and start not in (b"", b"[") else split_json(body)


def split_json(body: bytes) -> list[bytes]:
    """Return the body unparsed if it is an object, and the elements if it is an array, without the whitespace around
    them.

    Raises Unframable, and TooLarge if there are too many records.
    """
    start = body.lstrip(_WHITESPACE)[:1]
    if start == b"{":
        return [body]
    if not start:
        raise Unframable("the body is empty; send a JSON object, or an array of them")
    if start != b"[":
        raise Unframable(
            f"the body starts with {start!r}, neither {{ nor [; send a JSON object or an array of them, "
            f"or one record a line as application/x-ndjson"
        )
    return _split_array(body, RECORDS_MAX)


def split_one_value(text: bytes) -> list[bytes] | None:
    """Return the records if the complete text is one array or one object, without a limit of their number. Otherwise
    None.

    Used for files, which can also contain lines. See `split_json`.
    """
    start = text.strip(_WHITESPACE)
    try:
        if start[:1] == b"[":
            return _split_array(text, None)
        if start[:1] == b"{" and start[-1:] == b"}":
            # An object that ends before the text does, like the object of a line, then ends with a bracket of another
            # kind.
            split_broken_array(b"[[%b]]" % start[1:-1])
            return [text]
    except Unframable:
        return None
    return None


def _split_array(body: bytes, records_max: int | None) -> list[bytes]:
    # The fast path creates an object for every element before it can count them, so it is not used for a body with too
    # many commas.
    if records_max is None or body.count(b",") < _COMMAS_MAX:
        try:
            values = [bytes(element) for element in _read_array(body)]
        except (msgspec.DecodeError, RecursionError):
            return split_broken_array(body, records_max)
        if records_max is not None and len(values) > records_max:
            raise _too_many("records")
        return values
    return split_broken_array(body, records_max)


_read_array: Callable[[bytes], list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw]).decode


def split_broken_array(body: bytes, records_max: int | None = None) -> list[bytes]:
    """Split an array with elements that aren't JSON (`NaN`, a bad escape, nested too deep) without losing the others.

    Only strings, brackets, and commas are read. For valid JSON the result is the same as that of the fast path.

    Raises Unframable if strings or brackets don't close or an element has no bytes, and TooLarge if there are too many
    records.
    """
    values: list[bytes] = []
    closers = bytearray()  # closing bracket of each open bracket; the first is the array's own
    start = body.index(b"[") + 1
    for token in _TOKEN.finditer(body, start - 1):
        at, character = token.start(), body[token.start()]
        if character in _CLOSER:
            closers.append(_CLOSER[character])
            continue
        if character == _QUOTE:
            if token.end() == at + 1:
                raise Unframable(
                    f"the string that starts at byte {at} never ends, so the records can't be separated; close it"
                )
            continue
        if character == _COMMA:
            is_end_of_element = len(closers) == 1
        elif character == closers.pop():
            is_end_of_element = not closers
        else:
            raise Unframable(
                f"the bracket at byte {at} doesn't match, so the records can't be separated; close each bracket"
            )
        if is_end_of_element:
            value = body[start:at].strip(_WHITESPACE)
            start = at + 1
            if value:
                values.append(value)
            elif values or closers:
                raise Unframable(f"element {len(values) + 1} of the array has no bytes (look for a spare comma)")
            if records_max is not None and len(values) > records_max:
                raise _too_many("records")
            if not closers:
                break
    if closers:
        raise Unframable(f"the array never ends: {len(closers)} brackets are still open; was the body cut short?")
    if body[start:].strip(_WHITESPACE):
        raise Unframable(f"the array ends at byte {start}, but more follows; send lines as application/x-ndjson")
    return values


def split_lines(body: bytes, split: Callable[[bytes], list[bytes] | None] | None = None) -> list[bytes]:
    r"""Return one record per line, without its `\n` or `\r\n`. Blank lines are skipped.

    Args: split: `StreamFormat.split_lines` of a format whose lines can also end elsewhere.

    Raises Unframable if there is no record, and TooLarge if there are too many lines.
    """
    _refuse_too_many_lines(body)
    values = None if split is None else split(body)
    if values is None:
        # Most lines begin with a character that no blank line has, and most bodies have no carriage return: then
        # nothing is copied.
        values = [line for line in body.split(b"\n") if line and (line[0] > _SPACE or line.strip(_WHITESPACE))]
    return _without_returns(values, body)


def _refuse_too_many_lines(body: bytes) -> None:
    if body.count(b"\n") > RECORDS_MAX:
        raise _too_many("lines")


def _without_returns(values: list[bytes], body: bytes) -> list[bytes]:
    if not values:
        raise Unframable("the body holds no record; send one a line")
    return [line.removesuffix(b"\r") for line in values] if b"\r" in body else values


def _too_many(what: str) -> TooLarge:
    return TooLarge(f"more than {RECORDS_MAX} {what} in one request; nothing of it was persisted: send it in parts")
