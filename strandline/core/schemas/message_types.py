"""Message types of Protobuf from serialized descriptors, without generated code and without a compiler.

`protoc --include_imports --descriptor_set_out=FILE` writes a set of descriptors. Google's own common types (Timestamp,
wrappers) are not required in it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

HOW_TO_MAKE = "make it with `protoc --include_imports --descriptor_set_out=FILE ...`, and pass `base64 -w0 FILE`"
_COMMON = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")


def read_descriptor_set(text: str, message: str) -> Descriptor:
    """Return the message type of this name from a set of file descriptors in base64. Raises ValueError with a message."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        files = FileDescriptorSet.FromString(_bytes_of(text)).file
    except DecodeError as error:
        raise ValueError(f"is not a set of file descriptors; {HOW_TO_MAKE}") from error
    if not files:
        raise ValueError(f"is a set of file descriptors without a file; {HOW_TO_MAKE}")
    return _find(files, message)


def read_registered_file(
    text: str, references: Sequence[tuple[str, str]], indexes: Sequence[int], name: str | None
) -> Descriptor:
    """Return a message type of a file from a schema registry, in base64. Raises ValueError with a message.

    Args:
        `references`: Name and content of each imported file, after the files that it imports itself.
        `indexes`: Position of the type in the file, then in the outer type, and so on.
        `name`: Required name of the type. None accepts any name.
    """
    files = [_file(path, content) for path, content in references]
    file = _file("strandline-main.proto", text)
    names = [file.package] if file.package else []
    inside = file.message_type
    for index in indexes:
        if not 0 <= index < len(inside):
            raise ValueError(f"the schema has no message type at {list(indexes)}")
        names.append(inside[index].name)
        inside = inside[index].nested_type
    if name is not None and name != ".".join(names):
        raise ValueError(f"the message is a {'.'.join(names)}, but the stream expects {name}")
    return _find([*files, file], ".".join(names))


def _file(path: str, text: str) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(_bytes_of(text))
    except DecodeError as error:
        raise ValueError(f"the schema's file {path} is not a file descriptor") from error
    file.name = path
    return file


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"is not base64 ({error}); {HOW_TO_MAKE}") from error


def _find(files: Sequence[FileDescriptorProto], message: str) -> Descriptor:
    """Return the message type in these files. Each file comes after the files that it imports."""
    from importlib import import_module

    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    given = {file.name for file in files}
    for name in _COMMON:
        if f"google/protobuf/{name}.proto" not in given:
            pool.AddSerializedFile(import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.serialized_pb)
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else "unknown reason"
        raise ValueError(
            f"its files don't define message types ({reason}); check that all imports are included"
        ) from error
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError as error:
        known = sorted({f"{file.package}.{one.name}".lstrip(".") for file in files for one in file.message_type})
        raise ValueError(
            f"contains no message type {message}; it contains {', '.join(known[:20]) or 'none'}"
        ) from error
