"""Files of documents, in YAML or SQL, several of them as one text; each problem keeps its own file and line.

Files beside a document that it names, as `schema_file: meter.avsc`: their content is written into it, so that what is
registered needs no file. Who reads documents for a user does this; nobody else opens a file that a document names.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from strandline.core.documents import DOCUMENT_BYTES_MAX
from strandline.core.errors import InvalidDocument, PermanentError, Problem

_FILES = {("avro", "schema_file"): "schema", ("protobuf", "descriptor_file"): "descriptor"}
"""Where a file may be named -> where its content belongs: text as it is, descriptors in base64."""
_ROWS = ("lookup", "file")
"""Of a lookup, where the file of its rows is named."""


Place = Callable[[Problem], Problem]
"""Gives a problem of a text the place where its author wrote it."""


class JoinedTexts:
    """Documents from several places as one YAML text, so that they are checked together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._places: list[tuple[int, Place]] = []
        """The line before each part, and the places in it."""
        self._line = 0

    def add(self, text: bytes, place: Place) -> None:
        """Add a text behind the others. `place` takes problems with the lines of this text."""
        self._places.append((self._line, place))
        self._parts.append(text)
        self._line += text.count(b"\n") + 2

    def add_file(self, file: Path) -> None:
        """Add a file of YAML or SQL, with the files that it names. Raises InvalidDocument where that can't be."""
        text = file.read_bytes()
        if file.suffix.lower() != ".sql":
            self.add(
                with_files(text, file), lambda problem: Problem(problem.message, problem.path, str(file), problem.line)
            )
            return
        from strandline.frontends.sql.translation import translate  # only where there is some

        translation = translate(text, str(file))
        self.add(with_files(translation.yaml.encode(), file), translation.place_in_sql)

    @property
    def text(self) -> bytes:
        """All of them."""
        return b"\n---\n".join(self._parts)

    def placed(self, problem: Problem) -> Problem:
        """A problem of the whole text, with its own file and line."""
        if problem.line is None:
            return problem
        before, place = next(one for one in reversed(self._places) if problem.line > one[0])
        return place(Problem(problem.message, problem.path, problem.source, problem.line - before))


def with_files(text: bytes, document: Path) -> bytes:
    """The text of a document with the content of the files that it names, each on the line where its name stood.

    A text that can't be read is left as it is: its reader says why. Raises InvalidDocument for a file that can't be read.
    """
    if not any(name.encode() in text for _, name in (*_FILES, _ROWS)):
        return text
    try:
        whole = text.decode("utf-8")
        named = list(_named(whole))
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return text
    contents = [
        _rows(whole, document.parent / one.value.value, one, document)
        if one.kind == _ROWS[0]
        else _content(one.kind, document.parent / one.value.value, one.value, document)
        for one in named
    ]
    for (kind, key, value, _), text_of_file in reversed(list(zip(named, contents, strict=True))):
        content = json.dumps(text_of_file)
        name = "packed" if kind == _ROWS[0] else _FILES[kind, key.value]
        end, start = value.end_mark.index, key.start_mark.index
        whole = f"{whole[:start]}{name}: {content}{whole[end:]}"
    return whole.encode()


class _Named(NamedTuple):
    """A place where a text names a file."""

    kind: str
    """Of which part of a document, or of a lookup."""
    key: yaml.ScalarNode
    value: yaml.ScalarNode
    root: yaml.MappingNode
    """The whole document."""


def _named(text: str) -> Iterator[_Named]:
    """Where the text names files, in order."""
    for root in yaml.compose_all(text, yaml.SafeLoader):
        if not isinstance(root, yaml.MappingNode):
            continue
        is_lookup = any(key.value == _ROWS[0] for key, _ in root.value)
        for part_key, part in root.value:
            if is_lookup and part_key.value == _ROWS[1] and isinstance(part, yaml.ScalarNode):
                yield _Named(_ROWS[0], part_key, part, root)
            for key, value in part.value if isinstance(part, yaml.MappingNode) else ():
                is_named = isinstance(key, yaml.ScalarNode) and (part_key.value, key.value) in _FILES
                if is_named and isinstance(value, yaml.ScalarNode):
                    yield _Named(part_key.value, key, value, root)


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


def _rows(text: str, path: Path, named: _Named, document: Path) -> str:
    """The rows of a lookup's file, packed as they travel. They are checked here, where their lines are known. What is wrong with
    the document itself, its reader says."""
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
    try:
        return pack_rows(read_lookup_file(spec, path))
    except (PermanentError, TooLarge) as error:
        raise InvalidDocument([Problem(f"{path}: {error}", "file", str(document), line)]) from error
