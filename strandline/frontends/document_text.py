"""Writer of documents as YAML that `core.documents` reads back as the same data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from strandline.core.documents import resolves_to_text

RANGE_FIELDS = ("start", "end")
"""Fields of each input of a pipeline that limit the range of the log."""
_INLINE_MAX = 100
"""Maximum length in characters of a list or mapping that is written on one line."""


def window_name(place: str) -> str:
    """Return the name of a window without a name: that of its first sink, with `_` for characters that names can't contain."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", place).strip("_") or "window"
    return f"w_{name}" if name[0].isdigit() else name


def write_documents(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as one YAML text, with `---` between them. Fields keep their order."""
    return "---\n".join(
        yaml.dump(_with_step_lines(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
        for document in documents
    )


class _Step(dict[str, Any]):
    """A step of a pipeline. Each of its fields is on its own line."""


def _with_step_lines(document: Mapping[str, Any]) -> dict[str, Any]:
    steps = document.get("steps")
    if not isinstance(steps, list):
        return dict(document)
    return {**document, "steps": [_Step(step) if isinstance(step, Mapping) else step for step in steps]}


class _Dumper(yaml.SafeDumper):
    """Writes small values on one line, and quotes strings that a reader of YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: object) -> bool:
        return True  # a repeated value is written again: the reader refuses anchors

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=_is_small(sequence))

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, flow_style=_is_small(mapping))


def _is_small(value: object) -> bool:
    """Return True if the value contains no list of mappings and fits on a line."""
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    else:
        return True
    if any(isinstance(one, list | tuple | Mapping) and any(_is_nested(two) for two in _parts(one)) for one in inner):
        return False
    return len(str(value)) <= _INLINE_MAX and "\n" not in str(value)


def _parts(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, Mapping) else list(value)  # type: ignore[call-overload]


def _is_nested(value: object) -> bool:
    return isinstance(value, list | tuple | Mapping)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if resolves_to_text(text) and text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_step(dumper: yaml.SafeDumper, step: _Step) -> yaml.MappingNode:
    node = dumper.represent_mapping("tag:yaml.org,2002:map", step)
    node.flow_style = False
    return node


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(_Step, _represent_step)
