"""Sparkplug B payloads as columns. Plain metrics have their fields in the order of their numbers, each at most once, as all
Protobuf writers write them. This module only parses them: the meaning of a metric depends on earlier messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strandline.processing.formats.columns.byte_walk import ByteScanner, Int64Array
from strandline.processing.formats.columns.protobuf_columns import MessageField, read_member
from strandline.processing.formats.columns.read_columns import Column, Marks

METRICS_MAX = 1_000
"""Maximum number of metrics of a message in columns. All messages are scanned in parallel, up to the last metric of the
longest."""
_TIME, _METRIC, _SEQ = MessageField(b"\x08", "u8"), b"\x12", MessageField(b"\x18", "u8")
_MEMBERS = {
    "name": MessageField(b"\x0a", "text"),
    "alias": MessageField(b"\x10", "u8"),
    "timestamp": MessageField(b"\x18", "u8"),
    "datatype": MessageField(b"\x20", "u4"),
    "is_historical": MessageField(b"\x28", "bool"),
    "is_transient": MessageField(b"\x30", "bool"),
    "is_null": MessageField(b"\x38", "bool"),
    "int_value": MessageField(b"\x50", "u4"),
    "long_value": MessageField(b"\x58", "i8"),  # as a signed 64-bit integer, whatever the datatype
    "float_value": MessageField(b"\x65", "<f4"),
    "double_value": MessageField(b"\x69", "<f8"),
    "boolean_value": MessageField(b"\x70", "bool"),
    "string_value": MessageField(b"\x7a", "text"),
}
"""Members of a metric, in the order of their numbers."""


@dataclass(frozen=True)
class ReadMessages:
    """The content of some messages."""

    fits: Marks
    """True for messages that were read. The other values have no meaning for other messages."""
    time: Column
    seq: Column
    counts: Int64Array
    """Number of metrics of each message."""
    metrics: Mapping[str, Column]
    """Members of all metrics, in their order. A member that no metric has is missing."""


def read_messages(values: Sequence[bytes | None]) -> ReadMessages:
    """Parse the messages."""
    walk = ByteScanner(values)
    time = _read(walk, _TIME, walk.is_next(_TIME.tag))
    starts, ends, counts = _metrics_of(walk)
    seq = _read(walk, _SEQ, walk.is_next(_SEQ.tag))
    walk.end()
    inside = walk.within(starts, ends)
    metrics: dict[str, Column] = {}
    lead = inside.next_byte()
    for name, member in _MEMBERS.items():
        is_sent = lead == member.tag[0]
        if is_sent.any():
            metrics[name] = _read(inside, member, is_sent)
            lead = inside.next_byte()
    inside.end()
    walk.fits[np.repeat(np.arange(len(values)), counts)[~inside.fits]] = False
    return ReadMessages(walk.fits, time, seq, counts, metrics)


def _read(walk: ByteScanner, member: MessageField, is_sent: Marks) -> Column:
    """Read the member, which comes next if it was sent."""
    walk.skip(len(member.tag), is_sent)
    return read_member(walk, member, is_sent)


def _metrics_of(walk: ByteScanner) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the beginning and the end of the next metrics, message after message, and the number of metrics of each message."""
    found: list[tuple[Int64Array, Int64Array, Int64Array]] = []
    rows = np.flatnonzero(walk.is_next(_METRIC))
    while len(rows) and len(found) < METRICS_MAX:
        head = walk.at[rows] + 1
        length = walk.data[head].astype(np.int64)
        is_long = length > 0x7F
        if is_long.any():
            more = walk.data[np.minimum(head + 1, len(walk.data) - 1)].astype(np.int64)
            walk.fits[rows[is_long & (more > 0x7F)]] = False  # longer than 16 KiB
            length = np.where(is_long, (length & 0x7F) | (more << 7), length)
        begin = head + 1 + is_long
        end = begin + length
        over = end > walk.ends[rows]
        if over.any():
            walk.fits[rows[over]] = False
            begin, end = (np.minimum(place, walk.ends[rows]) for place in (begin, end))
        walk.at[rows] = end
        found.append((rows, begin, end))
        rows = rows[(walk.data[end] == _METRIC[0]) & (end < walk.ends[rows])]
    none = np.zeros(0, np.int64)
    owners, starts, ends = (np.concatenate([none, *(one[at] for one in found)]) for at in range(3))
    counts = np.bincount(owners, minlength=len(walk))
    # They were found in the order: first metric of each message, second metric, and so on.
    order = (counts.cumsum() - counts)[owners] + np.repeat(np.arange(len(found)), [len(one[0]) for one in found])
    ordered = np.empty((2, len(order)), np.int64)
    ordered[:, order] = starts, ends
    return ordered[0], ordered[1], counts
