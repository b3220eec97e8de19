"""Files that a document names, as `schema_file: meter.avsc`. Their content is written into the document.

So a registered document needs no file. Only readers of documents on behalf of a user do this; no other code opens files that a
document names. A document can come from another person than the user who applies it, and the content of the file becomes
readable for others. So a document can only name files in its own folder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from strandline.core.documents import DOCUMENT_BYTES_MAX
from strandline.core.errors import InvalidDocument, PermanentError, Problem
from strandline.core.streams.format import NamedFile
from strandline.core.streams.format_registry import FORMATS, all_forms

_ROWS = ("lookup", "file")
"""Part and field of a lookup that name the file of its rows."""


def _files_of_formats() -> dict[tuple[str, str], NamedFile]:
    """Return (part of a document, its field that names a file) -> use of the file."""
    return {
        (form.name if form.name in FORMATS else "format_options", field): use
        for form in all_forms()
        for field, use in form.files.items()
    }


def with_files(text: bytes, document: Path) -> bytes:
    """Return the text of a document with the content of the files that it names, each on the line of its name. A text that
    can't be parsed is returned unchanged; its reader reports the reason. Raises InvalidDocument if a file can't be read."""
    files = _files_of_formats()
    if not any(name.encode() in text for _, name in (*files, _ROWS)):
        return text
    try:
        whole = text.decode("utf-8")
        named = list(_named(whole, files))
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return text
    contents = []
    for one in named:
        path = _file_in_folder(one, document)
        is_rows = one.kind == _ROWS[0]
        contents.append(
            _rows(whole, path, one, document)
            if is_rows
            else _content(files[one.kind, one.key.value], path, one, document)
        )
    for (kind, key, value, _), text_of_file in reversed(list(zip(named, contents, strict=True))):
        content = json.dumps(text_of_file)
        name = "packed" if kind == _ROWS[0] else files[kind, key.value].field
        end, start = value.end_mark.index, key.start_mark.index
        whole = f"{whole[:start]}{name}: {content}{whole[end:]}"
    return whole.encode()


class _Named(NamedTuple):
    """Position at which a text names a file."""

    kind: str
    """Part of a document, or of a lookup, that contains the name."""
    key: yaml.ScalarNode
    value: yaml.ScalarNode
    root: yaml.MappingNode
    """The whole document."""


def _named(text: str, files: Collection[tuple[str, str]]) -> Iterator[_Named]:
    """Yield the names of files in the text, in their order."""
    for root in yaml.compose_all(text, yaml.SafeLoader):
        if not isinstance(root, yaml.MappingNode):
            continue
        is_lookup = any(key.value == _ROWS[0] for key, _ in root.value)
        for part_key, part in root.value:
            if is_lookup and part_key.value == _ROWS[1] and isinstance(part, yaml.ScalarNode):
                yield _Named(_ROWS[0], part_key, part, root)
            for key, value in part.value if isinstance(part, yaml.MappingNode) else ():
                is_named = isinstance(key, yaml.ScalarNode) and (part_key.value, key.value) in files
                if is_named and isinstance(value, yaml.ScalarNode):
                    yield _Named(part_key.value, key, value, root)


def _file_in_folder(named: _Named, document: Path) -> Path:
    """Return the path of the file. Raises InvalidDocument if it isn't in the folder of the document, also through a symbolic
    link."""
    path = document.parent / str(named.value.value)
    try:
        is_inside = "\0" not in named.value.value and path.resolve().is_relative_to(document.parent.resolve())
    except (OSError, RuntimeError):  # a circle of links
        is_inside = False
    if is_inside:
        return path
    field = _ROWS[1] if named.kind == _ROWS[0] else f"{named.kind}.{named.key.value}"
    message = (
        f"{named.value.value!r} is outside the folder of the document, but a document can read only files in "
        "and below its folder; copy the file there, and name the copy"
    )
    raise InvalidDocument([Problem(message, field, str(document), named.value.start_mark.line + 1)])


def _content(use: NamedFile, path: Path, named: _Named, document: Path) -> str:
    def refuse(why: str) -> InvalidDocument:
        line = named.value.start_mark.line + 1
        return InvalidDocument([Problem(f"{path} {why}", named.kind, str(document), line)])

    try:
        if path.exists() and not path.is_file():
            raise refuse("is not a file")
        if path.stat().st_size > DOCUMENT_BYTES_MAX:
            raise refuse(f"is larger than {DOCUMENT_BYTES_MAX:,} bytes, the maximum of a document")
        content = path.read_bytes()
        return content.decode("utf-8") if use.is_text else base64.b64encode(content).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(f"can't be read: {error}") from error


def _rows(text: str, path: Path, named: _Named, document: Path) -> str:
    """Return the rows of a lookup's file in their packed form. Errors get the lines of the file. Errors of the document are
    left to its reader."""
    from strandline.core.documents import read_documents  # what computes is only needed where a lookup names a file
    from strandline.core.lookups.lookup import LookupSpec
    from strandline.core.lookups.packed_rows import TooLarge, pack_rows
    from strandline.processing.desk.lookup_files import read_lookup_file

    first, last = named.root.start_mark, named.root.end_mark
    line = named.value.start_mark.line + 1
    try:
        (own,) = read_documents(text[first.index : last.index], str(document), ("lookup",))
        spec = LookupSpec.parse(replace(own, data={**{k: v for k, v in own.data.items() if k != "file"}, "rows": []}))
    except (InvalidDocument, ValueError):
        return ""
    if not path.is_file():
        raise InvalidDocument([Problem(f"{path}: no such file", "file", str(document), line)])
    try:
        return pack_rows(read_lookup_file(spec, path))
    except InvalidDocument:
        raise  # it names the lines of the file
    except PermanentError as error:
        raise InvalidDocument([Problem(str(error), "file", str(document), line)]) from error
    except TooLarge as error:
        raise InvalidDocument([Problem(f"{path}: {error}", "file", str(document), line)]) from error
