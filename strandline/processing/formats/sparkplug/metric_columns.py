"""Plain metrics as columns: the members of their rows that fields read. `messages.py` has the rules for one metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.columns.byte_walk import Int64Array
from strandline.processing.formats.columns.read_columns import Column, Marks, as_doubles, is_whole
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.sparkplug.message_columns import ReadMessages
from strandline.processing.formats.sparkplug.messages import Topic
from strandline.processing.formats.sparkplug.payload import DATATYPES, WHOLE_BITS
from strandline.processing.formats.sparkplug.sessions import Birth

_ALIAS_BITS = 31
"""Number of bits of an alias in columns. Metrics with larger aliases are left to other readers."""
_NAMES = (*DATATYPES, "")
"""Names of the datatypes, by their numbers. The last one represents all undefined numbers."""
_BITS = np.array([WHOLE_BITS.get(name, 0) for name in _NAMES])
_ARE_SIGNED = np.array([name.startswith("Int") for name in _NAMES])


def _are(*names: str) -> Marks:
    return np.isin(_NAMES, names)


_ARE_FLOATS, _ARE_TEXTS = _are("Float", "Double"), _are("String", "Text", "UUID")
_ARE_BOOLEANS, _ARE_TIMES, _ARE_DEFINED = _are("Boolean"), _are("DateTime"), ~_are("Unknown", "")


class MetricColumns:
    """Some of the parsed metrics, each with the birth with which it is read."""

    def __init__(
        self,
        read: ReadMessages,
        chosen: Int64Array,
        message_of: Int64Array,
        births: Sequence[Birth],
        birth_of: Int64Array,
    ) -> None:
        """`chosen`: mask of the metrics. `message_of`: index of the message of each chosen metric. `birth_of`: index of the
        birth of each message."""
        self._read, self._message_of = read, message_of
        is_all = len(chosen) == int(read.counts.sum())
        self._sent = read.metrics if is_all else {name: column.of(chosen) for name, column in read.metrics.items()}
        self.fits: Marks = np.ones(len(chosen), np.bool_)
        """True for metrics that the columns represent correctly. All others must be read as text."""
        self._find_names(births, birth_of[message_of])
        self._find_values()

    def columns(
        self, paths: Mapping[JsonPath, RecordField], topics: Sequence[Topic | None], topic_of: Int64Array
    ) -> dict[str, Column]:
        """Return the columns of the fields. `topic_of`: index of the topic of each message."""
        of_topics = topic_of[self._message_of]

        def level(of: Callable[[Topic], str]) -> Column:
            texts = pa.array([of(topic) or None if topic else None for topic in topics], pa.string())
            return Column(texts.take(pa.array(of_topics)), np.array(texts.is_valid())[of_topics])

        members: dict[str, Callable[[], Column]] = {
            "group": lambda: level(lambda topic: topic.key[0]),
            "node": lambda: level(lambda topic: topic.key[1]),
            "device": lambda: level(lambda topic: topic.device),
            "message": lambda: level(lambda topic: topic.kind),
            "seq": lambda: self._read.seq.of(self._message_of),
            "metric": self._names,
            "datatype": lambda: self._all(pa.array(_NAMES).take(pa.array(self._datatypes))),
            "is_null": lambda: self._all(self._is_null),
            "is_stale": lambda: self._all(np.zeros(len(self.fits), np.bool_)),
            "is_historical": lambda: self._all(self._values_of("is_historical", np.bool_)),
            "is_transient": lambda: self._all(self._values_of("is_transient", np.bool_)),
            "value_long": lambda: Column(self._wholes, (self._is_whole | self._is_time) & ~self._is_null),
            "value_double": self._doubles_column,
            "value_boolean": lambda: self._present_if("boolean_value", _ARE_BOOLEANS),
            "value_string": lambda: self._present_if("string_value", _ARE_TEXTS),
            "alias": lambda: Column(self._values_of("alias"), self._has("alias")),
            "time": self._times,
        }
        columns: dict[str, Column] = {}
        for path, field in paths.items():
            if len(path) == 1 and path[0] in members:
                column = self._of_field(field, members[path[0]]())
                if column is not None:
                    columns[field.name] = column
        return columns

    def _of_field(self, field: RecordField, column: Column) -> Column | None:
        """Return the column in the form of the field. If it has another type, mark the rows that have it, and return None."""
        values = column.values
        kind = (
            "string"
            if isinstance(values, pa.Array)
            else {"b": "boolean", "f": "double"}.get(values.dtype.kind, "whole")
        )
        if kind == "whole" and field.type == "double":
            doubles, are_sure = as_doubles(values)
            self.fits &= are_sure | ~column.present
            return Column(doubles, column.present)
        if kind == ("whole" if is_whole(field) else field.type):
            return column
        self.fits &= ~column.present
        return None

    def _find_names(self, births: Sequence[Birth], birth_of: Int64Array) -> None:
        """Find the names of the metrics and their datatypes, in the metric itself or in its birth."""
        own, sent = self._sent.get("name"), self._values_of("datatype")
        aliases = self._values_of("alias")
        keys, names, datatypes = _declared(births)
        key = birth_of << _ALIAS_BITS | aliases
        at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        is_named = np.zeros(len(self.fits), np.bool_)
        if own is not None:
            is_named = np.array(pc.not_equal(own.values, "").fill_null(False))
        is_known = self._has("alias") & (aliases < 1 << _ALIAS_BITS) & (keys[at] == key)
        self.fits &= is_named | is_known
        declared = datatypes[at]
        for row in np.flatnonzero(is_named & (sent == 0)).tolist():
            assert own is not None
            declared[row] = births[birth_of[row]].by_name.get(own.values[row].as_py(), 0)
        number = np.where(sent != 0, sent, declared)
        self._datatypes = np.minimum(number, len(DATATYPES))
        self.fits &= _ARE_DEFINED[self._datatypes]

        def texts() -> Column:
            if own is not None and is_named.all():
                return own
            found = names.take(pa.array(at))
            return self._all(pc.if_else(pa.array(is_named), own.values, found) if own is not None else found)

        self._names = texts

    def _find_values(self) -> None:
        """Find the values by their datatypes. Mark metrics that have no value and aren't null."""
        datatypes = self._datatypes
        bits = _BITS[datatypes]
        self._is_whole, self._is_time = bits > 0, _ARE_TIMES[datatypes]
        is_float = _ARE_FLOATS[datatypes]
        is_null = self._has("is_null") & self._values_of("is_null", np.bool_)
        has_int, has_long = self._has("int_value"), self._has("long_value")
        self._wholes = np.where(has_int & self._is_whole, self._values_of("int_value"), self._values_of("long_value"))
        has_value = np.where(self._is_whole, has_int | has_long, has_long & self._is_time)
        if has_value.any():
            is_signed = _ARE_SIGNED[datatypes]
            shift = np.where(is_signed, 64 - bits, 0)
            self._wholes = (self._wholes << shift) >> shift
            within = (self._wholes >= 0) & ((self._wholes >> np.clip(bits, 1, 63)) == 0)
            has_value &= is_signed | (within & self._is_whole) | ((self._wholes >= 0) & self._is_time)
        has_float = self._has("float_value")
        self._floats = np.where(
            has_float, self._values_of("float_value", np.float64), self._values_of("double_value", np.float64)
        )
        has_value |= is_float & (has_float | self._has("double_value"))
        has_value |= _ARE_BOOLEANS[datatypes] & self._has("boolean_value")
        has_value |= _ARE_TEXTS[datatypes] & self._has("string_value")
        self.fits &= has_value | is_null
        self._is_null = is_null | (is_float & ~np.isfinite(self._floats))
        self._is_float = is_float

    def _doubles_column(self) -> Column:
        doubles = self._floats
        if self._is_whole.any():
            doubles = np.where(self._is_whole, self._wholes.astype(np.float64), doubles)
        return Column(doubles, (self._is_whole | self._is_float) & ~self._is_null)

    def _present_if(self, name: str, datatypes: Marks) -> Column:
        """Return the member for metrics that have one of these datatypes."""
        column = self._sent.get(name)
        present = datatypes[self._datatypes] & ~self._is_null & self._has(name)
        if column is None:
            return Column(
                self._values_of(name, np.bool_) if name == "boolean_value" else pa.nulls(len(present), pa.string()),
                present,
            )
        if name == "string_value" and (present != column.present).any():
            return Column(pc.if_else(pa.array(present), column.values, pa.scalar(None, pa.string())), present)
        return Column(column.values, present)

    def _times(self) -> Column:
        own = self._values_of("timestamp")
        whole = np.where(self._read.time.present, self._read.time.values, 0)
        times = np.where(own != 0, own, whole[self._message_of])
        return Column(times, times != 0)

    def _has(self, name: str) -> Marks:
        column = self._sent.get(name)
        return np.zeros(len(self.fits), np.bool_) if column is None else column.present

    def _values_of(self, name: str, kind: Any = np.int64) -> npt.NDArray[Any]:
        """Return the values; zero if they weren't sent."""
        column = self._sent.get(name)
        return np.zeros(len(self.fits), kind) if column is None else column.values

    def _all(self, values: Any) -> Column:
        return Column(values, np.ones(len(self.fits), np.bool_))


def _declared(births: Sequence[Birth]) -> tuple[Int64Array, pa.Array, Int64Array]:
    """Return the declarations of births by alias: index of the birth and alias in one sorted number; name; datatype. The last
    entry belongs to no birth."""
    found = sorted(
        (number << _ALIAS_BITS | alias, name, datatype)
        for number, birth in enumerate(births)
        for alias, (name, datatype) in birth.by_alias.items()
        if alias < 1 << _ALIAS_BITS
    )
    found.append((len(births) << _ALIAS_BITS, "", 0))
    keys, names, datatypes = zip(*found, strict=True)
    return np.array(keys), pa.array(names, pa.string()), np.array(datatypes)
