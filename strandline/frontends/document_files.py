"""Files beside a document that it names, as `schema_file: meter.avsc`: their content is written into it, so that what is
registered needs no file. Who reads documents for a user does this; nobody else opens a file that a document names."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from strandline.core.documents import DOCUMENT_BYTES_MAX
from strandline.core.errors import InvalidDocument, Problem

_FILES = {("avro", "schema_file"): "schema", ("protobuf", "descriptor_file"): "descriptor"}
"""Where a file may be named -> where its content belongs: text as it is, descriptors in base64."""


def with_files(text: bytes, document: Path) -> bytes:
    """The text of a document with the content of the files that it names, each on the line where its name stood.

    A text that can't be read is left as it is: its reader says why. Raises InvalidDocument for a file that can't be read.
    """
    if not any(name.encode() in text for _, name in _FILES):
        return text
    try:
        whole = text.decode("utf-8")
        named = list(_named(whole))
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return text
    contents = [_content(kind, document.parent / value.value, value, document) for kind, _, value in named]
    for (kind, key, value), text_of_file in reversed(list(zip(named, contents, strict=True))):
        content = json.dumps(text_of_file)
        name = _FILES[kind, key.value]
        end, start = value.end_mark.index, key.start_mark.index
        whole = f"{whole[:start]}{name}: {content}{whole[end:]}"
    return whole.encode()


def _named(text: str) -> Iterator[tuple[str, yaml.ScalarNode, yaml.ScalarNode]]:
    """Where the text names files, in order: of which part, the name's key, and the name."""
    for root in yaml.compose_all(text, yaml.SafeLoader):
        for part_key, part in root.value if isinstance(root, yaml.MappingNode) else ():
            for key, value in part.value if isinstance(part, yaml.MappingNode) else ():
                is_named = isinstance(key, yaml.ScalarNode) and (part_key.value, key.value) in _FILES
                if is_named and isinstance(value, yaml.ScalarNode):
                    yield part_key.value, key, value


def _content(kind: str, path: Path, value: yaml.ScalarNode, document: Path) -> str:
    def refuse(why: str) -> InvalidDocument:
        line = value.start_mark.line + 1
        return InvalidDocument([Problem(f"{path} {why}", kind, str(document), line)])

    try:
        if path.stat().st_size > DOCUMENT_BYTES_MAX:
            raise refuse(f"is larger than the {DOCUMENT_BYTES_MAX:,} bytes that a document may have")
        content = path.read_bytes()
        return content.decode("utf-8") if kind == "avro" else base64.b64encode(content).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(f"can't be read: {error}") from error
