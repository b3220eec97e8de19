"""A sample of records, and the document that is proposed for it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from strandline.ingest.gateway.framing import split_one_value
from strandline.processing.formats.inference.field_types import number_of
from strandline.processing.formats.inference.schemas import NoSampleError
from strandline.processing.formats.json_repairs import JsonRepairs
from strandline.processing.formats.record_fields import why_unreadable

SAMPLE_RECORDS_MAX = 10_000
"""Maximum number of records of a sample that are examined."""


_WORDS = ("nan", "infinity", "inf", "none", "null", "undefined")
"""Words that some programs write without quotes if there is no value."""


@dataclass
class Proposal:
    """A document for the sample, with notes for the user."""

    document: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    records: int = 0
    accepted: int = 0
    """Rows that the document accepts."""
    rejected: list[str] = field(default_factory=list)
    """Reasons of the first rejected rows."""
    event_time: str | None = None
    """Field of the event time. None for the log time."""


Proposed = tuple[Proposal, list[bytes]]
"""A proposal, and the records of the sample as they would be sent."""


@dataclass(frozen=True)
class JsonSample:
    """A sample that is JSON."""

    records: list[Any]
    """Values that can be read. At least one is an object or an array."""
    objects: list[dict[str, Any]]
    """The values that are objects."""
    notes: list[str]
    """Notes for the user on the sample."""
    missing: list[str]
    """Words without quotes that are values of some records, as nan."""
    texts: list[str]
    """Text of each record."""

    @property
    def values(self) -> list[bytes]:
        """The records as they would be sent."""
        return [
            text.encode() if self.missing else json.dumps(record).encode()
            for text, record in zip(self.texts, self.records, strict=True)
        ]


class Sample:
    """A sample of records: a file, or lines that were made from the records of a topic."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def text(self) -> str | None:
        """The sample as text. None if it isn't UTF-8."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return None

    @cached_property
    def lines(self) -> list[str]:
        """The first lines that aren't blank. Empty if the sample isn't text."""
        lines = (self.text or "").split("\n")
        return [line.removesuffix("\r") for line in lines if line.strip()][:SAMPLE_RECORDS_MAX]

    @cached_property
    def json(self) -> JsonSample | None:
        """The sample as JSON. None if it doesn't begin as JSON. Raises NoSampleError if it contains no object."""
        if self.text is None or self.text.lstrip()[:1] not in ("[", "{"):
            return None
        texts, program = _json_texts(self.text, self.lines)
        texts = texts[:SAMPLE_RECORDS_MAX]
        read = [(text, *found) for text in texts if (found := _read(text)) is not None]
        records = [record for _, record, _ in read]
        missing = list(dict.fromkeys(word for *_, words in read for word in words))
        unreadable = len(texts) - len(records)
        if unreadable > len(records):
            raise NoSampleError("the sample looks like JSON, but most lines can't be read; pass one object per line")
        objects = [record for record in records if isinstance(record, dict)]
        if not objects and not any(isinstance(record, list) for record in records):
            raise NoSampleError("the sample contains no JSON object; pass one object per line, or an array of objects")
        notes = []
        if program is not None:
            notes.append(
                "the sample is one JSON value; HTTP requests and pipeline run accept it, but strandline ingest needs one object "
                f"per line: jq -c {program} FILE"
            )
        if unreadable:
            notes.append(f"records of the sample that can't be read, and are left out: {unreadable:,}")
        if missing:
            notes.append(
                f"the words {', '.join(missing)} without quotes are no JSON, and are read as no value (missing)"
            )
        return JsonSample(records, objects, notes, missing, [text for text, *_ in read])


def read_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError if no stream accepts it: it can't be read, for example because of half a
    surrogate pair, or it contains a number that no field can hold."""
    if (why := why_unreadable(text.encode())) is not None:
        raise ValueError(why)
    value = json.loads(text, parse_int=number_of)
    json.dumps(value, allow_nan=False)  # raises for infinite numbers
    return value


def _read(text: str) -> tuple[Any, list[str]] | None:
    """Return the value of a JSON text, and the words without quotes that are no value. None if it can't be read."""
    with contextlib.suppress(ValueError):
        return read_json(text), []
    repaired = JsonRepairs(_WORDS).repaired(text.encode())
    if repaired is None:
        return None
    with contextlib.suppress(ValueError):
        found = [word for word in _WORDS if JsonRepairs([word]).repaired(text.encode()) not in (None, text.encode())]
        return read_json(repaired.decode()), found
    return None


def readable(texts: Sequence[str]) -> Iterator[Any]:
    """Yield the values of the JSON strings that `read_json` can read."""
    for text in texts:
        with contextlib.suppress(ValueError):
            yield read_json(text)


def _json_texts(text: str, lines: list[str]) -> tuple[list[str], str | None]:
    """Return the text of each record: the elements of an array, one value over several lines, or the lines. Also return the jq
    program that writes one record per line; None if they already are."""
    found = split_one_value(text.encode())
    if found is None:
        return lines, None
    program = "'.[]'" if text.lstrip()[0] == "[" else "." if len(lines) > 1 else None
    return [one.decode() for one in found], program
