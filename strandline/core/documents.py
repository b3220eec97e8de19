"""Reader of documents that people write: YAML files with one or several streams, lookups, pipelines, and notices.

The reader accepts a subset of YAML, so that a document has the same meaning for each reader and always fits into JSON. Scalars
resolve as in YAML 1.2: `on`, `no`, and `2026-11-01` are strings. Anchors, aliases, tags, duplicate keys, numbers beyond 64
bits, `.nan`, and `.inf` are refused. Every value keeps its line, so that a later error of a model or of a check against the
stream can still name it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from strandline.core.errors import InvalidDocument, Problem

KINDS = ("stream", "lookup", "pipeline", "notice")
"""Kinds of documents. The first field of a document is its kind, and the value of this field is its name."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
"""Form of the names of streams, jobs, and emissions. It is valid as a Kafka topic, an index name, a path, and in a URL."""
NAME_FORM = "lower-case letters, digits, '.', '_' and '-', a letter or digit first, at most 200"
DOCUMENT_BYTES_MAX = 250_000
"""Maximum size of a file. This limit and the next two bound the cost of a file before it is processed."""
NODES_MAX = 20_000
"""Maximum number of values, lists, mappings, and names of mappings in a file."""
DEPTH_MAX = 32
COLUMNS_MAX = 1_000
"""Maximum number of fields of a stream, or visible to one step of a pipeline. Elasticsearch's default limit of an index."""
_WORD_LENGTH_MAX = 200
_NAMES_LISTED_MAX = 40
_INTEGER_BITS_MAX = 63
_PACKED_TEXT = re.compile(r'(?<=packed: ")[A-Za-z0-9+/=]*(?=")')
_PACKED_BYTES = re.compile(_PACKED_TEXT.pattern.encode())
"""Rows of lookups, which have their own limit."""
_SPLIT = "split it into several files"
_LINE_LENGTH = 76

Path = tuple[str | int, ...]
"""Path to a value: `("steps", 1, "window", "tumbling")`."""


@dataclass(frozen=True)
class YamlDocument:
    """A YAML document: plain data as in JSON, and the line of each value."""

    kind: str
    name: str
    data: dict[str, object]
    source: str = "<request>"
    lines: dict[Path, int] = field(default_factory=dict, repr=False, compare=False)

    def line_of(self, path: Sequence[str | int]) -> int | None:
        """Return the line of the value at `path`, from 1. If the value is missing, return the line of the nearest value around
        it."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(tuple(path[:length]))
            if line is not None:
                return line
        return None

    def line_of_text(self, path: str) -> int | None:
        """Return the line as `line_of`, for a path as `path_text` writes it."""
        return nearest_of(self.lines, path)

    def problem(self, path: Sequence[str | int], message: str) -> Problem:
        """Return a problem at `path`, with its source and line."""
        return Problem(message=message, path=path_text(path), source=self.source, line=self.line_of(path))


def path_text(path: Sequence[str | int]) -> str:
    """Return a path as a string: `steps[1].window.tumbling`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest_of(known: Mapping[Path, int], path: str) -> int | None:
    """Return the entry of `known` for the value at `path`, as `path_text` writes it, or for the nearest value around it."""
    by_text = {path_text(one): found for one, found in known.items()}
    while path and path not in by_text:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return by_text.get(path)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint for an error message: `; did you mean 'tumbling'?` if one of `known` is similar. Otherwise return the list
    of known words, or nothing if the list is long."""
    names = sorted(known)
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6) if len(word) <= _WORD_LENGTH_MAX else []
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; expected one of: {', '.join(names)}" if 0 < len(names) <= _NAMES_LISTED_MAX else ""


def read_values(text: str | bytes, source: str) -> list[object]:
    """Return the value of each document of `text`, of any type. Raises InvalidDocument as `read_documents` does."""
    reader = _Reader(source)
    values = [data for data, _ in reader.read(_as_text(text, source))]
    if reader.problems:
        raise InvalidDocument(reader.problems)
    return values


def read_documents(text: str | bytes, source: str, kinds: Sequence[str] = KINDS) -> list[YamlDocument]:
    """Return the non-empty documents of `text` in their order.

    Raises InvalidDocument with all problems: invalid YAML, a refused feature, no document, or a document that isn't exactly one
    of the kinds with a valid name.

    Args: source: Name of the file, for errors. kinds: Kinds that the file can contain.
    """
    packed = _PACKED_BYTES.finditer(text) if isinstance(text, bytes) else _PACKED_TEXT.finditer(text)
    if len(text) - sum(found.end() - found.start() for found in packed) > DOCUMENT_BYTES_MAX:
        raise InvalidDocument([Problem(f"is larger than {DOCUMENT_BYTES_MAX:,} bytes; {_SPLIT}", source=source)])
    reader = _Reader(source, kinds)
    documents = [
        document for data, lines in reader.read(_as_text(text, source)) if (document := reader.identify(data, lines))
    ]
    if not documents and not reader.problems:
        reader.problems.append(Problem(f"contains no document; expected {_first_lines(kinds)}", source=source))
    if reader.problems:
        raise InvalidDocument(reader.problems)
    return documents


def document_text(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, for people. `read_documents` reads it back as equal data."""
    return str(
        yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=None, allow_unicode=True, width=_LINE_LENGTH)
    )


def without_packed(text: bytes) -> bytes:
    """Return a document without the rows of its lookup, for people."""
    return _PACKED_BYTES.sub(b"...", text)


def _first_lines(kinds: Sequence[str]) -> str:
    return " or ".join(f"'{kind}: NAME'" for kind in kinds)


def _as_text(text: str | bytes, source: str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise InvalidDocument([Problem("is not UTF-8 text; save it as UTF-8", source=source, line=line)]) from error


class _Loader(yaml.SafeLoader):
    """Composes nodes only; `_Reader` makes the values. Scalars resolve as in the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own attribute)
    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.nodes += 1
        refused = None
        if isinstance(event, yaml.AliasEvent):
            refused = f"alias *{event.anchor} is not supported; write the value again"
        elif getattr(event, "anchor", None) is not None:
            refused = f"anchor &{event.anchor} is not supported; write the value where it is used"
        elif getattr(event, "tag", None) is not None:
            refused = f"tag {event.tag} is not supported; write a plain value"
        elif self.depth >= DEPTH_MAX:
            refused = f"is nested more than {DEPTH_MAX} levels deep"
        elif self.nodes > NODES_MAX:
            refused = f"is after {NODES_MAX:,} values, the maximum for one file; {_SPLIT}"
        if refused:
            raise yaml.composer.ComposerError(None, None, refused, event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


_YAML_REMEDIES = {
    "found character '\\t' that cannot start any token": "; indent with spaces, YAML takes no tabs",
    "expected <block end>, but found '<block mapping start>'": "; a line above is indented more or less: "
    "fields of one mapping must start in the same column",
    "expected <block end>, but found '-'": "; all '-' of a list must be in the same column",
    "mapping values are not allowed here": "; the line is indented too far, or a string with ': ' needs quotes",
}
"""Error message of PyYAML -> remedy, if it is clear."""


def resolves_to_text(plain: str) -> bool:
    """Return True if the reader accepts this value as a string without quotes."""
    known = _Loader.yaml_implicit_resolvers.get(plain[:1], [])
    return not any(pattern.match(plain) for _, pattern in known)


class _Reader:
    """One reading of one file. Collects the problems."""

    def __init__(self, source: str, kinds: Sequence[str] = KINDS) -> None:
        self.source = source
        self.kinds = kinds
        self.problems: list[Problem] = []

    def read(self, text: str) -> list[tuple[object, dict[Path, int]]]:
        """Return the values of all documents with their lines. Stop at the first syntax error."""
        documents: list[tuple[object, dict[Path, int]]] = []
        try:
            loader = _Loader(text)
            while loader.check_node():
                lines: dict[Path, int] = {}
                if (node := loader.get_node()) is not None:
                    documents.append((self._value(node, (), lines), lines))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = ", ".join(part for part in (error.context, error.problem) if part) or "is not YAML"
            if message.endswith("got '?'"):  # PyYAML ends a plain string here, only inside of brackets
                message += "; inside {...} or [...], a string with a '?' needs quotes"
            message += _YAML_REMEDIES.get(error.problem or "", "")
            prefix = "" if isinstance(error, yaml.composer.ComposerError) else "is not valid YAML: "
            self._add(prefix + message, (), mark.line + 1 if mark else None)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            self._add(f"is not valid YAML: the character U+{ord(text[error.position]):04X} is not allowed", (), line)
        except RecursionError:
            self._add(f"is nested more than {DEPTH_MAX} levels deep", (), None)
        return documents

    def identify(self, data: object, lines: dict[Path, int]) -> YamlDocument | None:
        """Return the document if its kind and its name are valid. Otherwise add a problem, and return None."""
        if data is None:
            return None
        first_line = lines.get(())
        if not isinstance(data, dict):
            self._add(f"expected a mapping that starts with {_first_lines(self.kinds)}", (), first_line)
            return None
        kinds = [kind for kind in self.kinds if kind in data]
        if len(kinds) != 1:
            found = f"has both '{kinds[0]}:' and '{kinds[1]}:'" if kinds else "has no kind"
            self._add(
                f"{found}; a document has exactly one of {', '.join(f'{kind}: NAME' for kind in self.kinds)}",
                (),
                first_line,
            )
            return None
        kind = kinds[0]
        name = data[kind]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            below = f"put the fields at the level of '{kind}: NAME', not below it"
            message = below if isinstance(name, dict) else f"{name!r} is not a name; expected {NAME_FORM}"
            self._add(message, (kind,), lines.get((kind,)))
            return None
        return YamlDocument(kind=kind, name=name, data=data, source=self.source, lines=lines)

    def _add(self, message: str, path: Path, line: int | None) -> None:
        self.problems.append(Problem(message=message, path=path_text(path), source=self.source, line=line))

    def _value(self, node: yaml.Node, path: Path, lines: dict[Path, int]) -> object:
        lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, number), lines) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, lines)
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, object]:
        values: dict[str, object] = {}
        key_lines: dict[str, int] = {}
        cut_off: set[str] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if values and value_node.start_mark.index == key_node.end_mark.index:
                before = next(
                    reversed(values)
                )  # no ':' follows this "key": it is the remainder of the string before it
                if before not in cut_off:
                    cut = f'has a comma inside {{...}}, where it ends at the comma; put it in quotes: {before}: "..."'
                    self._add(cut, (*path, before), key_lines[before])
                cut_off.add(before)
                continue
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                self._add("expected a name before the ':'", path, line)
                continue
            key = self._text(key_node.value, path, line)
            if key in values:
                self._add(f"'{key}' occurs twice, first on line {key_lines[key]}; remove one", (*path, key), line)
                continue
            values[key] = self._value(value_node, (*path, key), lines)
            lines[(*path, key)] = line  # the line of the field name: a value can begin on the next line
            key_lines[key] = line
        return values

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        text: str = node.value
        line = node.start_mark.line + 1
        match node.tag.rpartition(":")[2]:
            case "bool":
                return text.lower() == "true"
            case "null":
                return None
            case "int":
                return self._integer(text, path, line)
            case "float":
                number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                if not math.isfinite(number):
                    self._add(f"{_short(text)} is not a finite number", path, line)
                return number
            case _:
                return self._text(text, path, line)

    def _integer(self, text: str, path: Path, line: int) -> int:
        if len(text) <= 64:
            number = int(text, 0 if text[:2] in ("0x", "0o") else 10)
            if number.bit_length() <= _INTEGER_BITS_MAX:
                return number
        self._add(f"{_short(text)} does not fit into 64 bits; put it in quotes if it is text", path, line)
        return 0

    def _text(self, text: str, path: Path, line: int) -> str:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            self._add("contains half of a surrogate pair, which is not a character", path, line)
            return ""
        return text


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}... ({len(text):,} characters)"
