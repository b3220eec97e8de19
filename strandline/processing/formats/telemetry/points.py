"""Shared parts of readers of requests with data points: the form of their result, and Protobuf messages.

A request becomes `{"points":[...]}`, whose elements are rows. A reader also accepts a record in that form. So a dead letter that
contains one point of a request can be requeued. No request begins with these bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX
from strandline.processing.formats.record_fields import Rejection

if TYPE_CHECKING:
    from google.protobuf.message import Message

POINTS = ("points",)
"""Path of the array whose elements are rows."""
_POINTS_START = b'{"points":'
_encode = msgspec.json.encode

Series = tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]
"""Common members of some points, and the members of each point."""


def of_points(series: Iterable[Series]) -> bytes | Rejection:
    """Return the object with the points of all series, each with the members of its series.

    It is rejected before it exceeds the maximum size of the rows of one record, because a few bytes can be one long label and
    thousands of points.
    """
    points: list[bytes] = []
    size = 0
    try:
        for common, own in series:
            start = b""
            for one in own:
                start = start or _encode(common)[:-1] + b","
                points.append(start + _encode(one)[1:])
                size += len(points[-1])
                if size > EXPLODED_BYTES_MAX:
                    return Rejection(REASON_SCHEMA, f"its points have more than {EXPLODED_BYTES_MAX} bytes together")
    except (UnicodeError, RecursionError, ValueError) as error:
        return Rejection(REASON_DECODE, f"a point contains a value that no field can have: {error}")
    return b"%s[%s]}" % (_POINTS_START, b",".join(points))


def is_of_points(value: bytes) -> bool:
    """Return True if the record already has that form."""
    return value.startswith(_POINTS_START)


def message_class(package: str, messages: Mapping[str, Sequence[tuple[str, int, str]]], name: str) -> type[Message]:
    """Return the class of a Protobuf message. `messages`: name -> fields: name, number, and type as in a `.proto` file (`double`,
    `repeated Label`, `optional double`). Other fields are skipped when a message is read."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # only imported if a stream needs it

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for field, number, text in fields:
            *words, kind = text.split()
            added = described.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if "repeated" in words else kinds.LABEL_OPTIONAL
            if kind in messages:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if "optional" in words:
                added.proto3_optional = True
                added.oneof_index = len(described.oneof_decl)
                described.oneof_decl.add(name=f"_{field}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
