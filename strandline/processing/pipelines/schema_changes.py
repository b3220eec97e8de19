"""How a stream's document may change while jobs read the stream. Pure.

Each slice is decoded by the version that was in force when it was cut, in every replay. So a change may concern records to come
in any way, but what was read before must still be what a pipeline of now can compute with: of the same fields, with values that
keep their meaning in the types of now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from strandline.core.field_types import digits_of
from strandline.core.streams.fields import FieldSpec
from strandline.core.streams.format import ANOTHER_STREAM
from strandline.core.streams.stream import StreamSpec

_WHOLE_DIGITS = {"integer": 10, "long": 19}
"""How many digits before the point hold every value."""


def is_widening(old: str, new: str) -> bool:
    """Whether each value of the old type is one of the new type, exactly."""
    if old == new:
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
    """Why the stream's document can't become `new` while jobs read the stream, as sentences that say what to do instead; empty
    when it can. `history`: every version that slices may go by, the present one last.

    A field that is removed is refused by the check of the pipelines that use it, and nobody else misses it.
    """
    return [*_of_records(history[-1], new), *_of_fields(history, new)]


def _of_records(old: StreamSpec, new: StreamSpec) -> Iterator[str]:
    if old.format != new.format:
        yield f"format from {old.format} to {new.format}: senders don't change all at once; {ANOTHER_STREAM}"
    if old.explode != new.explode:
        yield f"explode from {_written(old)} to {_written(new)}: the rows of a record would be others; {ANOTHER_STREAM}"
    if old.key != new.key:
        yield f"key from {old.key} to {new.key}: one device's records would lie in two partitions, out of order; {ANOTHER_STREAM}"
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
    """`before`, `after`: field -> where in the source of a record it stands, as the two documents say."""
    for name in sorted(before.keys() - after.keys()):
        yield f"{part}.{name} is gone, and records in the log have it in their {source} alone; keep it"
    if new.key is None or old.key != new.key:
        return
    if new.key not in before and source == "headers":
        return  # a record's own key goes before a header's, so a new header moves no record; a level of the topic goes first
    if before.get(new.key) != after.get(new.key, before.get(new.key)):
        yield f"{part}.{new.key}: another key, and one device's records would lie in two partitions; {ANOTHER_STREAM}"


def _of_fields(history: Sequence[StreamSpec], new: StreamSpec) -> Iterator[str]:
    old = history[-1]
    for name, field in new.fields.items():
        before = old.fields.get(name)
        types = dict.fromkeys(one.fields[name].type for one in history if name in one.fields)
        if narrower := [kind for kind in types if not is_widening(kind, field.type)]:
            yield (
                f"field {name} from {narrower[-1]} to {field.type}: not every value that was read is one of {field.type}; add "
                f"the new type as another field, as {name}_2: {{type: {field.type}, required: false, from: {_path(name, field)}}}"
            )
        elif field.required and (before is None or not before.required):
            what = "is new and required" if before is None else "becomes required"
            yield f"field {name} {what}, and records in the log may lack it; write {field.type}? for it"
        elif before is not None and before.text and not field.text:
            yield f"field {name} no longer comes as text, and records in the log may hold it so; keep 'text: true'"


def _written(stream: StreamSpec) -> object:
    """The stream's `explode` as a document has it."""
    return stream.as_document().get("explode", "none")


def _path(name: str, field: FieldSpec) -> str:
    return field.path or f"$.{name}"
