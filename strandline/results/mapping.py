"""The strict mapping of a stage's documents, and the index template that gives it to every month's index."""

from __future__ import annotations

import re
from typing import Any

from strandline.core.errors import Conflict
from strandline.core.field_types import kind_of
from strandline.results.document import DocumentShape, index_stem
from strandline.results.elasticsearch_client import RequestRefused, request

_DATE = {"type": "date", "format": "strict_date_optional_time||epoch_millis"}
FIELD_MAPPINGS: dict[str, dict[str, Any]] = {
    # No ignore_above: a string too long to be indexed (32,766 bytes) is refused and becomes a dead letter, where
    # ignore_above would keep it and hide it from every search.
    "string": {"type": "keyword"},
    "long": {"type": "long"},
    "integer": {"type": "integer"},
    "double": {"type": "double"},
    "boolean": {"type": "boolean"},
    "timestamp": _DATE,
    # The document holds the exact digits as a string; the index keeps a double beside, to sort and aggregate by.
    "decimal": {"type": "double", "coerce": True},
}
_PRIORITY_MIN = 500
"""Above Elastic's own templates (100 to about 300)."""
_TIMEOUT_S = 30.0


def build_mapping(shape: DocumentShape) -> dict[str, Any]:
    """Return the mapping of the shape's documents. `strict`: a field that it doesn't name is refused, not guessed."""
    fields = {name: dict(FIELD_MAPPINGS[kind_of(type_name)]) for name, type_name in shape.fields}
    origin = {"job": "keyword", "stage": "keyword", "version": "integer", "epoch": "long", "emission": "long"}
    return {
        "dynamic": "strict",
        "properties": {
            "@timestamp": dict(_DATE),
            "window": {"properties": {"start": dict(_DATE), "end": dict(_DATE)}},
            **fields,
            "strandline": {"properties": {name: {"type": type_name} for name, type_name in origin.items()}},
        },
    }


def ensure_index_template(
    url: str, emit_name: str, mapping: dict[str, Any], *, generation: int = 1, shards: int = 1, replicas: int = 0
) -> None:
    """Make sure that every index of the emit, present and to come, takes documents of this mapping under the alias.

    The indices of a later generation than the first get no alias: nobody sees them before they are complete.

    1. Compare with the indices that exist: a field that has another type there is a Conflict, and nothing is changed.
    2. Put the template, from which the first document of a month makes its index.
    3. Add to the existing indices the fields that they lack (again comparing: one may have been made in between).

    Doing it again, or twice at the same time, changes nothing. Raises Conflict and IndexUnavailable.
    """
    stem = index_stem(emit_name, generation)
    aliases: dict[str, Any] = {emit_name: {}} if generation == 1 else {}
    _find_lacking(url, stem, mapping)
    _put(url, template_path(stem), _build_template(stem, aliases, mapping, shards, replicas))
    for index in _find_lacking(url, stem, mapping):
        _put(url, f"/{index}/_mapping", mapping)


def template_path(stem: str) -> str:
    """Return where the index template lies from which the indices of this stem are made."""
    return f"/_index_template/strandline-{stem}"


def _build_template(
    stem: str, aliases: dict[str, Any], mapping: dict[str, Any], shards: int, replicas: int
) -> dict[str, Any]:
    return {
        "index_patterns": [f"{stem}-*"],
        # The pattern of `turbine` matches the indices of `turbine-minute` too: the longer name has to win.
        "priority": _PRIORITY_MIN + len(stem),
        "template": {
            # Without coercion 3.7 in a long field is refused, not cut to 3.
            "settings": {
                "index.number_of_shards": shards,
                "index.number_of_replicas": replicas,
                "index.mapping.coerce": False,
            },
            "mappings": mapping,
            "aliases": aliases,
        },
        "_meta": {"description": f"Results emitted as {stem}", "managed_by": "strandline"},
    }


def _find_lacking(url: str, emit_name: str, mapping: dict[str, Any]) -> list[str]:
    """Return the existing indices that lack a field of the mapping. Raises Conflict where a field has another type."""
    parameters = {"expand_wildcards": "all", "ignore_unavailable": "true"}
    held = request(url, "GET", f"/{emit_name},{emit_name}-*/_mapping", timeout_s=_TIMEOUT_S, parameters=parameters)
    if emit_name in held:
        raise Conflict(
            f"an index is named {emit_name}, so it cannot be the alias of the results; emit under another name"
        )
    own = re.compile(re.escape(emit_name) + r"-\d{4}\.\d{2}")
    wanted = _flatten(mapping["properties"])
    lacking = []
    for index in sorted(name for name in held if own.fullmatch(name)):
        present = _flatten(held[index]["mappings"].get("properties", {}))
        for path, type_name in wanted.items():
            if present.get(path, type_name) != type_name:
                raise Conflict(
                    f"index {index} holds {path} as {present[path]}, and this pipeline makes it {type_name}; "
                    f"emit under another name, or rename the field"
                )
        if not wanted.keys() <= present.keys():
            lacking.append(index)
    return lacking


def _flatten(properties: dict[str, Any], prefix: str = "") -> dict[str, str]:
    types: dict[str, str] = {}
    for name, field in properties.items():
        if "properties" in field:
            types |= _flatten(field["properties"], f"{prefix}{name}.")
        else:
            types[prefix + name] = str(field["type"])
    return types


def _put(url: str, path: str, body: dict[str, Any]) -> None:
    try:
        request(url, "PUT", path, timeout_s=_TIMEOUT_S, body=body)
    except RequestRefused as error:
        raise Conflict(str(error)) from error
