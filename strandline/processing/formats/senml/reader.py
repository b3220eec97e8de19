"""Packs of SenML (RFC 8428) in JSON to their resolved records.

A resolved record has `name`, `unit`, `time`, and one of `value`, `string`, `boolean`, and `data`; `sum`, if the sender has it.
Base values (`bn`, `bt`, `bu`, `bv`, `bs`) hold for their record and for those after it. `time` is in milliseconds since 1970. It
is missing if the pack has no time, or a time relative to now (less than 2**28 seconds): the log time of the record is nearest.

A pack is rejected as a whole if one of its records can't be resolved, because base values would be wrong for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.record_fields import JsonText, Rejection, why_unreadable

ABSOLUTE_SECONDS_MIN = 1 << 28
"""Minimum of a time that isn't relative to now (RFC 8428, section 4.5.3)."""
VERSION_MAX = 10
"""Maximum `bver` (RFC 8428, section 4.4)."""
VALUES = {"v": "value", "vs": "string", "vb": "boolean", "vd": "data"}
"""Member of a SenML record -> member of a resolved record."""
_TYPES = {
    "v": (int, float), "bv": (int, float), "s": (int, float), "bs": (int, float), "t": (int, float), "bt": (int, float),
    "bver": (int, float), "vs": (str,), "vd": (str,), "n": (str,), "bn": (str,), "u": (str,), "bu": (str,), "vb": (bool,),
}  # fmt: skip
_read = msgspec.json.Decoder(list[dict[str, Any]] | dict[str, Any]).decode
_encode = msgspec.json.encode


class SenmlPacks:
    """Reads the packs of one stream."""

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each pack as an object with its resolved records."""
        return [None if value is None else _resolved(value) for value in values]

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of a resolved record -> a pack with only this record, without base values."""
        found = list(_records(_pack(value)))
        names = {"name": "n", "unit": "u", "sum": "s", **{name: short for short, name in VALUES.items()}}

        def letter(element: int) -> bytes:
            one = found[element]
            short = {names[name]: content for name, content in one.items() if name in names}
            time = {"t": one["time"] / 1000} if "time" in one else {}
            return _encode([short | time])

        return letter


class _UnresolvedError(ValueError):
    """A pack that can't be resolved."""


def _resolved(value: bytes) -> JsonText:
    try:
        return _encode({"records": list(_records(_pack(value)))})
    except _UnresolvedError as error:
        return Rejection(REASON_SCHEMA, str(error))
    except (ValueError, RecursionError) as error:
        return Rejection(REASON_DECODE, f"not a pack of SenML: {why_unreadable(value) or error}")


def _pack(value: bytes) -> list[dict[str, Any]]:
    """Return the records of a pack. One object is a pack of one record."""
    found = _read(value)
    return [found] if isinstance(found, dict) else found


def _records(pack: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    base: dict[str, Any] = {}
    for number, record in enumerate(pack):
        _check(number, record)
        base |= {name: one for name, one in record.items() if name in ("bn", "bt", "bu", "bv", "bs")}
        given = [name for name in VALUES if name in record]
        if len(given) > 1:
            raise _UnresolvedError(f"record {number}: has {given[0]} and {given[1]}, and a record has one value")
        if not given and "s" not in record:
            continue  # only base values
        name = f"{base.get('bn', '')}{record.get('n', '')}"
        if not name:
            raise _UnresolvedError(f"record {number}: has no name; expected n, or bn before it")
        found: dict[str, Any] = {"name": name}
        if unit := record.get("u", base.get("bu")):
            found["unit"] = unit
        seconds = base.get("bt", 0) + record.get("t", 0)
        if seconds >= ABSOLUTE_SECONDS_MIN:
            found["time"] = round(seconds * 1000)
        for short in given:
            found[VALUES[short]] = record[short] + base.get("bv", 0) if short == "v" else record[short]
        if "s" in record:
            found["sum"] = record["s"] + base.get("bs", 0)
        yield found


def _check(number: int, record: dict[str, Any]) -> None:
    for name, value in record.items():
        kinds = _TYPES.get(name)
        if kinds is None:
            if name.endswith("_"):
                raise _UnresolvedError(f"record {number}: {name} must be understood, and isn't known here")
        elif not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _UnresolvedError(f"record {number}: {name} is {str(value)[:50]!r}, not a {kinds[-1].__name__}")
    if record.get("bver", VERSION_MAX) > VERSION_MAX:
        raise _UnresolvedError(
            f"record {number}: version {record['bver']} is newer than {VERSION_MAX}, which is known here"
        )
