"""Reads the messages of one partition in their order. Each message becomes its rows, or the reason why it has none.

The topic determines the kind of a message: `spBv1.0/GROUP/TYPE/NODE`, and `/DEVICE` for messages of devices.

* A birth (NBIRTH, DBIRTH) declares the metrics of a node or a device, and has a row for each.
* Data (NDATA, DDATA) has a row for each of its metrics. An alias means the name that the birth declared for it.
* A death (NDEATH, DDEATH) has a row without a value for each metric that is stale from then on.
* A command (NCMD, DCMD) has a row for each metric. It changes no state.

These are rejected as `schema`:

* data, a death, or a birth of a device without the birth before it;
* a message whose sequence number doesn't follow the number before it. A birth can have any number;
* a death of an earlier session;
* a single metric with an alias that wasn't declared, or without a value of its datatype.

Later messages are read normally. Another program must request a rebirth.

A record that was requeued from its dead letter is read with the declarations at that time. It has no position in the order of
messages, so it needs none, and changes no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from strandline.core.record_headers import (
    HEADER_REPLAY_OF,
    REASON_DECODE,
    REASON_SCHEMA,
    SOURCE_MQTT,
    unpack_header_values,
)
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.sparkplug.payload import (
    NoValueError,
    datatype_name,
    members_of_value,
    payload_class,
)
from strandline.processing.formats.sparkplug.sessions import NODE, Birth, Key, Node, Sessions, TooManyBirthsError

NAMESPACE = "spBv1.0"
_OF_NODES = ("NBIRTH", "NDATA", "NDEATH", "NCMD")
_OF_DEVICES = ("DBIRTH", "DDATA", "DDEATH", "DCMD")
_BD_SEQ = "bdSeq"
_POINTS_START = b'{"points":['
_encode = msgspec.json.encode
_read_points = msgspec.json.Decoder(dict[str, list[msgspec.Raw]]).decode

Row = bytes | Rejection
"""A row as a JSON object, or the reason why there is none."""


class Topic(NamedTuple):
    """The sender of a message, and its kind."""

    key: Key
    kind: str
    device: str
    """NODE if the node itself is the sender."""


class RejectedError(Exception):
    """A message is rejected completely."""

    def __init__(self, message: str, reason: str = REASON_SCHEMA) -> None:
        super().__init__(message)
        self.rejection = Rejection(reason, message)


class MessageReader:
    """Reads the messages of one partition."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def rows(self, value: bytes | None, source: bytes | None) -> Sequence[Row] | Rejection:
        """Return the rows of one record, or the reason why it is rejected completely. `source`: header with its topic, packed
        with its other headers."""
        try:
            return self._rows(value, source)
        except RejectedError as error:
            return error.rejection

    def _rows(self, value: bytes | None, source: bytes | None) -> Sequence[Row]:
        if value is None:
            raise RejectedError("no value (a tombstone)", REASON_DECODE)
        if value.startswith(_POINTS_START):  # content of the dead letter of one metric
            return _rows_of_points(value)
        header, named = unpack_header_values(source)
        topic = _read_topic(header)
        key, kind, device = topic
        message = _parsed(value)
        is_requeued = HEADER_REPLAY_OF in named
        about = _about(topic, message)
        if kind.endswith("CMD"):
            return _of_data(message, about, self._births_for_command(key, device))
        if kind.endswith("BIRTH"):
            return self._of_birth(message, key, kind, device, about, is_requeued=is_requeued)
        if kind == "NDEATH":
            return self._of_node_death(message, key, self.sessions.node(key), about, is_requeued=is_requeued)
        birth = self.turn(topic, message.seq if message.HasField("seq") else None, is_requeued=is_requeued)
        if kind == "DDEATH":
            return list(_stale(about | ({"time": message.timestamp} if message.timestamp else {}), birth))
        return _of_data(message, about, birth)

    def topic_of_data(self, source: bytes | None) -> Topic | None:
        """Return the topic of a data message that has a position in the order of messages. None for all others."""
        header, named = unpack_header_values(source)
        try:
            topic = _read_topic(header)
        except RejectedError:
            return None
        return topic if topic.kind in ("NDATA", "DDATA") and HEADER_REPLAY_OF not in named else None

    def _of_birth(
        self, message: Any, key: Key, kind: str, device: str, about: dict[str, Any], *, is_requeued: bool
    ) -> Sequence[Row]:
        birth = _birth_of(message)
        if not is_requeued:
            seq = message.seq % 256
            try:
                if kind == "NBIRTH":
                    self.sessions.begin_node(key, birth, seq, _bd_seq(message) or 0)
                elif (node := self.sessions.node(key)) is None:
                    raise RejectedError("the birth of a device whose node has none before it, or has died since")
                else:
                    self.sessions.begin_device(key, device, birth)
                    node.seq = seq
            except TooManyBirthsError as error:
                raise RejectedError(str(error)) from error
        return _of_data(message, about, birth)

    def _of_node_death(
        self, message: Any, key: Key, node: Node | None, about: dict[str, Any], *, is_requeued: bool
    ) -> Sequence[Row]:
        if node is None:
            raise RejectedError("the death of a node that is dead already, or has no birth before it")
        bd_seq = _bd_seq(message)
        if bd_seq is not None and bd_seq != node.bd_seq:
            raise RejectedError(
                f"the death of another session: its bdSeq is {bd_seq}, and that of the birth {node.bd_seq}"
            )
        # Its time is that of the connection, when the client gave it to the broker.
        rows = list(_stale(about, node.births[NODE]))
        for device in sorted(node.alive):
            rows += _stale({**about, "device": device}, node.births[device])
        if not is_requeued:
            self.sessions.end_node(key)
        return rows

    def turn(self, topic: Topic, seq: int | None, *, is_requeued: bool = False) -> Birth:
        """Add a data message, or the death of a device, to the order of its node's messages. Return the birth with which it is
        read. Raises RejectedError."""
        node, device = self.sessions.node(topic.key), topic.device
        if node is None:
            raise RejectedError("its node has no birth before it, or has died since: ask it for a rebirth")
        if seq is None:
            raise RejectedError("it has no seq, so a missing message before it can't be detected")
        before, seq_here = node.seq, seq % 256
        missing = (seq_here - before - 1) % 256
        if not is_requeued and seq_here != before:
            node.seq = seq_here
        birth = node.births.get(device) if not device or device in node.alive else None
        if topic.kind == "DDEATH" and birth is not None and not is_requeued:
            node.alive.discard(device)
        if missing and not is_requeued:
            what = "it came before" if seq_here == before else f"{missing} before it are missing, or come later"
            raise RejectedError(f"seq {seq} does not follow {before}: {what}")
        if birth is None:
            raise RejectedError("its device has no birth before it, or has died since: ask for a rebirth")
        return birth

    def _births_for_command(self, key: Key, device: str) -> Birth | None:
        node = self.sessions.node(key)
        return node.births.get(device) if node is not None else None


def rows_of_data(value: bytes, topic: Topic, birth: Birth) -> Sequence[Row]:
    """Return the rows of a readable data message, after `turn`."""
    message = _parsed(value)
    return _of_data(message, _about(topic, message), birth)


def _of_data(message: Any, about: dict[str, Any], birth: Birth | None) -> list[Row]:
    return [_row(metric, message, about, birth) for metric in message.metrics]


def _about(topic: Topic, message: Any) -> dict[str, Any]:
    """Return the common members of all rows of a message."""
    key, kind, device = topic
    about = {"group": key[0], "node": key[1], **({"device": device} if device else {}), "message": kind}
    return about | ({"seq": message.seq} if message.HasField("seq") else {})


def _read_topic(header: bytes | None) -> Topic:
    """Return the topic of a record. Raises RejectedError."""
    if header is None or not header.startswith(SOURCE_MQTT):
        raise RejectedError("it was not sent by MQTT, but only a topic identifies the sender of a message")
    topic = header[len(SOURCE_MQTT) :].decode("utf-8", "replace")
    levels = topic.split("/")
    kind = levels[2] if len(levels) > 2 else ""
    expected = 4 if kind in _OF_NODES else 5 if kind in _OF_DEVICES else 0
    if levels[0] != NAMESPACE or len(levels) != expected or not all(levels):
        raise RejectedError(
            f"topic {topic[:200]!r} is none of {NAMESPACE}/GROUP/TYPE/NODE, with TYPE {', '.join(_OF_NODES)}, or of "
            f"{NAMESPACE}/GROUP/TYPE/NODE/DEVICE, with TYPE {', '.join(_OF_DEVICES)}"
        )
    return Topic((levels[1], levels[3]), kind, levels[4] if expected == 5 else NODE)


def _parsed(value: bytes) -> Any:
    from google.protobuf.message import DecodeError  # only imported if a stream needs it

    message = payload_class()()
    try:
        message.ParseFromString(value)
    except (DecodeError, ValueError, RecursionError) as error:
        raise RejectedError(f"not a payload of Sparkplug B: {str(error)[:200]}", REASON_DECODE) from error
    return message


def _birth_of(message: Any) -> Birth:
    """Return the declarations of a birth. Metrics without a name or a datatype declare nothing; their rows are rejected."""
    metrics: list[tuple[str, int | None, int]] = []
    names, aliases = set[str](), set[int]()
    for metric in message.metrics:
        if not metric.name or datatype_name(metric.datatype) is None:
            continue
        alias = metric.alias if metric.HasField("alias") else None
        if metric.name in names or alias in aliases:
            what = f"metric {metric.name!r}" if metric.name in names else f"alias {alias}"
            raise RejectedError(f"the birth declares {what} twice, so data is ambiguous")
        names.add(metric.name)
        if alias is not None:
            aliases.add(alias)
        metrics.append((metric.name, alias, metric.datatype))
    return Birth(tuple(metrics))


def _bd_seq(message: Any) -> int | None:
    for metric in message.metrics:
        if metric.name == _BD_SEQ:
            return int(metric.long_value or metric.int_value) % 256
    return None


def _row(metric: Any, message: Any, about: dict[str, Any], birth: Birth | None) -> Row:
    """Return the row of one metric, or the reason why there is none."""
    name, declared = metric.name, None
    if name:
        declared = birth.by_name.get(name) if birth is not None else None
    elif metric.HasField("alias"):
        found = birth.by_alias.get(metric.alias) if birth is not None else None
        if found is None:
            return Rejection(REASON_SCHEMA, f"alias {metric.alias} is not declared by the birth before it")
        name, declared = found
    else:
        return Rejection(REASON_SCHEMA, "a metric has neither name nor alias")
    number = metric.datatype or declared or 0
    datatype = datatype_name(number)
    if datatype is None:
        return Rejection(
            REASON_SCHEMA, f"metric {name[:200]!r}: neither it nor the birth before it has its datatype (got {number})"
        )
    try:
        value = members_of_value(metric, datatype)
    except NoValueError as error:
        return Rejection(REASON_SCHEMA, f"metric {name[:200]!r}: {error}")
    row = {
        **about,
        "metric": name,
        "datatype": datatype,
        "is_null": False,
        "is_stale": False,
        "is_historical": metric.is_historical,
        "is_transient": metric.is_transient,
        **value,
    }
    if metric.HasField("alias"):
        row["alias"] = metric.alias
    if time_ms := metric.timestamp or message.timestamp:
        row["time"] = time_ms
    return _encode(row)


def _stale(about: dict[str, Any], birth: Birth) -> Iterator[Row]:
    for name, alias, datatype in birth.metrics:
        row = about | {"metric": name, "datatype": datatype_name(datatype), "is_null": True, "is_stale": True}
        row |= {"is_historical": False, "is_transient": False}
        yield _encode(row | ({"alias": alias} if alias is not None else {}))


def letter_of_row(row: bytes) -> bytes:
    """Return the content of a row's dead letter, so that a replay repeats no other row: the row as JSON."""
    return b"%s%s]}" % (_POINTS_START, row)


def letters_of_metrics(value: bytes) -> Callable[[int], bytes]:
    """Return a function: index of a metric without a row -> its dead letter. This is the payload with only this metric, and
    without a body, which becomes no row."""
    message = _parsed(value)
    message.DiscardUnknownFields()

    def letter(element: int) -> bytes:
        alone = type(message)(metrics=[message.metrics[element]])
        for name in ("timestamp", "seq"):
            if message.HasField(name):
                setattr(alone, name, getattr(message, name))
        return bytes(alone.SerializeToString())

    return letter


def _rows_of_points(value: bytes) -> list[Row]:
    try:
        points: Iterable[msgspec.Raw] = _read_points(value)["points"]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RejectedError(f"not JSON: {error}", REASON_DECODE) from error
    return [bytes(point) for point in points]
