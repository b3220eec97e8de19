"""The changes of a stream's document that are allowed while jobs read the stream. Pure.

Each replay decodes a slice with the version that was effective when the slice was cut. So a change can affect new records in
any way. But a current pipeline must still be able to process old records: they must have the same fields, with values that keep
their meaning in the new types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from strandline.core.field_types import digits_of
from strandline.core.streams.fields import FieldSpec
from strandline.core.streams.format import ANOTHER_STREAM
from strandline.core.streams.stream import StreamSpec

_WHOLE_DIGITS = {"integer": 10, "long": 19}
"""Number of digits before the decimal point that hold every value."""


def is_widening(old: str, new: str) -> bool:
    """Return True if the new type can represent each value of the old type. A double does so exactly up to 2^53, and returns the
    nearest double for larger integers."""
    if old == new or (old, new) == ("long", "double"):
        return True
    if old == "integer" and new in ("long", "double"):
        return True
    whole, fraction = digits_of(new) or (0, 0)
    if old in _WHOLE_DIGITS:
        return whole - fraction >= _WHOLE_DIGITS[old]
    if (before := digits_of(old)) is None:
        return False
    return fraction >= before[1] and whole - fraction >= before[0] - before[1]


def refused_changes(history: Sequence[StreamSpec], new: StreamSpec) -> list[str]:
    """Return the reasons why the stream's document can't become `new` while jobs read the stream, each with a remedy. Empty if
    it can.

    `history`: all versions by which slices can be decoded, the current one last. A removed field is reported by the check of the
    pipelines that use it, and nothing else needs it.
    """
    return [*_of_records(history[-1], new), *_of_fields(history, new)]


def _of_records(old: StreamSpec, new: StreamSpec) -> Iterator[str]:
    if old.format != new.format:
        yield f"format from {old.format} to {new.format}: senders don't change all at the same time; {ANOTHER_STREAM}"
    if old.explode != new.explode:
        yield f"explode from {_written(old)} to {_written(new)}: a record would have other rows; {ANOTHER_STREAM}"
    if old.key != new.key:
        yield f"key from {old.key} to {new.key}: records of one device would be in two partitions, unordered; {ANOTHER_STREAM}"
    levels = [one.mqtt.fields if one.mqtt else {} for one in (old, new)]
    headers = [one.http.record_headers if one.http else {} for one in (old, new)]
    yield from _of_source("mqtt.fields", "topic", old, new, *levels)
    yield from _of_source("http.headers", "headers", old, new, *headers)
    yield from _of_source("metadata", "metadata", old, new, old.metadata, new.metadata)
    if old.format == new.format:
        yield from new.form.refused_changes(old, new)


def _of_source(
    part: str, source: str, old: StreamSpec, new: StreamSpec, before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[str]:
    """Yield the reasons against a change of fields from one source of a record, such as headers. `before`, `after`: field -> its
    position in that source, in the two documents."""
    for name in sorted(before.keys() - after.keys()):
        yield f"{part}.{name} was removed, but records in the log have it only in their {source}; keep it"
    if new.key is None or old.key != new.key:
        return
    if new.key not in before and source == "headers":
        return  # the key of a record precedes a header, so a new header moves no record. A topic level precedes it
    if before.get(new.key) != after.get(new.key, before.get(new.key)):
        yield f"{part}.{new.key}: another key, so records of one device would be in two partitions; {ANOTHER_STREAM}"


def _of_fields(history: Sequence[StreamSpec], new: StreamSpec) -> Iterator[str]:
    old = history[-1]
    for name, field in new.fields.items():
        before = old.fields.get(name)
        types = dict.fromkeys(one.fields[name].type for one in history if name in one.fields)
        if narrower := [kind for kind in types if not is_widening(kind, field.type)]:
            yield (
                f"field {name} from {narrower[-1]} to {field.type}: {field.type} can't represent every value in the log. Add "
                f"the new type as another field, as {name}_2: {{type: {field.type}, required: false, from: {_path(name, field)}}}"
            )
        elif field.required and (before is None or not before.required):
            what = "is new and required" if before is None else "becomes required"
            yield f"field {name} {what}, but records in the log can lack it; write {field.type}? for it"
        elif before is not None and before.text and not field.text:
            yield f"field {name} is no longer read from a string, but records in the log can contain strings; keep 'text: true'"


def _written(stream: StreamSpec) -> object:
    """Return the stream's `explode` as a document contains it."""
    return stream.as_document().get("explode", "none")


def _path(name: str, field: FieldSpec) -> str:
    return field.path or f"$.{name}"
