"""The strict mapping of a stage's documents, and the index template that applies it to every month's index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from strandline.core.errors import Conflict
from strandline.core.field_types import element_of, kind_of, members_of
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_client import RequestRefused, request
from strandline.results.index_settings import INDEX_SETTINGS_DEFAULT, IndexSettings
from strandline.results.names import generation_of, index_stem, write_alias

_DATE = {"type": "date", "format": "strict_date_optional_time||epoch_millis"}
FIELD_MAPPINGS: dict[str, dict[str, Any]] = {
    # No ignore_above: a string that is too long to be indexed (32,766 bytes) is refused and becomes a dead letter. With
    # ignore_above, it would be stored and hidden from every search.
    "string": {"type": "keyword"},
    "long": {"type": "long"},
    "integer": {"type": "integer"},
    "double": {"type": "double"},
    "boolean": {"type": "boolean"},
    "timestamp": _DATE,
    # The document contains the exact digits as a string. The index stores an additional double for sorting and
    # aggregation.
    "decimal": {"type": "double", "coerce": True},
}
_PRIORITY_MIN = 500
"""Priority above Elastic's own templates (100 to about 300)."""
_TIMEOUT_S = 30.0
_INDEX_PLACEHOLDER = "{index}"
_MARK = {"managed_by": "strandline"}
"""Added to the `_meta` of objects that are created here."""
_HIDDEN = {"is_hidden": True}
"""A search for `turbine-*` doesn't use the write aliases."""


def build_mapping(shape: DocumentShape) -> dict[str, Any]:
    """Return the mapping of the shape's documents. `strict`: a field that is missing in it is refused, not guessed."""
    fields = {name: field_mapping(type_name) for name, type_name in shape.fields}
    origin = {"job": "keyword", "stage": "keyword", "version": "integer", "epoch": "long", "emission": "long"}
    origin["slice_digest"] = "keyword"
    window = {"window": {"properties": {"start": dict(_DATE), "end": dict(_DATE)}}}
    if not shape.has_window:
        window, origin = (
            {},
            origin | {"stream": "keyword", "partition": "integer", "offset": "long", "element": "integer"},
        )
    if shape.is_open:
        origin["open"] = "boolean"
    return {
        "dynamic": "strict",
        "_meta": dict(_MARK),
        "properties": {
            "@timestamp": dict(_DATE),
            **window,
            **fields,
            "strandline": {"properties": {name: {"type": type_name} for name, type_name in origin.items()}},
        },
    }


def field_mapping(type_name: str) -> dict[str, Any]:
    """Return the mapping of one field.

    In Elasticsearch each field can have many values, so an array has the mapping of its elements. An array of structs
    is `nested`, so that a search matches values of one struct.
    """
    element = element_of(type_name)
    if element is not None:
        inner = field_mapping(element)
        return {"type": "nested", **inner} if "properties" in inner else inner
    if members := members_of(type_name):
        return {"properties": {name: field_mapping(kind) for name, kind in members.items()}}
    return dict(FIELD_MAPPINGS[kind_of(type_name)])


def is_ours(mapping: dict[str, Any]) -> bool:
    """Return True if Strandline created the index or the template with this mapping."""
    return bool(mapping.get("_meta", {}).get("managed_by") == _MARK["managed_by"])


def ensure_index_template(
    url: str,
    emit_name: str,
    mapping: dict[str, Any],
    *,
    generation: int = 1,
    is_shown: bool = True,
    settings: IndexSettings = INDEX_SETTINGS_DEFAULT,
    first: str | None = None,
) -> list[str]:
    """Make the indices of the emission from `first` on, existing and future ones, accept documents of this mapping.

    Returns the names of all existing indices. Unless `is_shown`, the indices get no alias: those of a backfill are
    hidden until it is complete.

    1. Check the indices, the alias, and the template with these names. An object that Strandline didn't create is a
       Conflict, and so is a field with another type. Then nothing is changed.
    2. Put the template, which defines the index of a month, unless it exists with this content. Elasticsearch checks and
       publishes a template, which takes longer than all other requests of a start.
    3. Add the missing fields and aliases to the existing indices.

    Idempotent, also in parallel. Raises Conflict and IndexUnavailable.

    Args: first: First index that can still be written. None for the newest existing index. An older index may be
    read-only, and then gets no new fields.
    """
    stem = index_stem(emit_name, generation)
    held, shown = _held(url, stem, emit_name)
    later = max((generation_of(emit_name, index) or 0 for index in shown), default=0)
    present = _own_template(url, stem)
    lacking = find_lacking(held, mapping)
    template = _build_template(stem, emit_name, is_shown, mapping, settings)
    if present is None or not _is_same(present, template):
        _put(url, template_path(stem), template)
    first = first if first is not None else max(held, default="")
    for index in lacking:
        meta = {**held[index]["mappings"]["_meta"], **_MARK}
        _add_fields(url, index, {**mapping, "_meta": meta}, is_written=index >= first)
    actions = list(_lacking_aliases(held, emit_name, is_shown, first, later if later > generation else None))
    if actions:
        _put(url, "/_aliases", {"actions": actions}, method="POST")
    return sorted(held)


def make_index(
    url: str, index: str, emit_name: str, mapping: dict[str, Any], *, is_shown: bool, settings: IndexSettings
) -> None:
    """Create the index of a month with this definition, without a template: another template could take precedence.

    Several processes may create it at the same time. Raises RequestRefused and IndexUnavailable.
    """
    # Elasticsearch replaces this placeholder by the index name only in a template.
    aliases = {
        name.replace(_INDEX_PLACEHOLDER, index): settings
        for name, settings in _aliases_of_each(emit_name, is_shown).items()
    }
    body = {"settings": settings.as_settings(), "mappings": mapping, "aliases": aliases}
    try:
        request(url, "PUT", f"/{index}", timeout_s=_TIMEOUT_S, body=body)
    except RequestRefused as error:
        if error.error_type != "resource_already_exists_exception":
            raise


def template_path(stem: str) -> str:
    """Return the path of the index template for the indices of this stem."""
    return f"/_index_template/strandline-{stem}"


def _build_template(
    stem: str, emit_name: str, is_shown: bool, mapping: dict[str, Any], settings: IndexSettings
) -> dict[str, Any]:
    return {
        "index_patterns": [f"{stem}-*"],
        # The pattern of `turbine` matches the indices of `turbine-minute` too: the longer name must take precedence.
        "priority": _PRIORITY_MIN + len(stem),
        "template": {
            "settings": settings.as_settings(),
            "mappings": mapping,
            "aliases": _aliases_of_each(emit_name, is_shown),
        },
        "_meta": {"description": f"Results emitted as {stem}", **_MARK},
    }


def _aliases_of_each(emit_name: str, is_shown: bool) -> dict[str, Any]:
    """Return the aliases that an index has from its creation, in the form of a template."""
    shown: dict[str, Any] = {emit_name: {}} if is_shown else {}
    return shown | {write_alias(_INDEX_PLACEHOLDER): _HIDDEN}


def _held(url: str, stem: str, emit_name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the existing monthly indices of a stem, with their mappings and aliases, and the names of all indices in
    the alias.

    Raises Conflict if one of their names, the alias, or a write alias isn't Strandline's.
    """
    parameters = {"expand_wildcards": "all", "ignore_unavailable": "true"}
    found: dict[str, Any] = request(
        url, "GET", f"/{stem},{stem}-*,{emit_name}.g*-*", timeout_s=_TIMEOUT_S, parameters=parameters
    )
    if stem in found:
        raise Conflict(f"an index is named {stem}, so it cannot be the alias of the results; emit under another name")
    own = re.compile(re.escape(stem) + r"-\d{4}\.\d{2}")
    held = {name: found[name] for name in sorted(found) if own.fullmatch(name)}
    for name, one in held.items():
        if not is_ours(one["mappings"]):
            raise _foreign(f"index {name}", "rename or delete it")
    for name, one in sorted(found.items()):
        for alias in one["aliases"]:
            if own.fullmatch(alias.removesuffix(".write")) and alias != write_alias(name):
                raise _foreign(f"alias {alias} of index {name}", "remove it there")
    shown = [name for name, one in sorted(found.items()) if emit_name in one["aliases"]]
    if shown and not any(is_ours(found[name]["mappings"]) for name in shown):
        raise _foreign(f"alias {emit_name} of index {', '.join(shown[:5])}", "remove it there")
    return held, shown


def _own_template(url: str, stem: str) -> dict[str, Any] | None:
    """Return the existing template. None if there is none. Raises Conflict if it isn't Strandline's."""
    try:
        (found,) = request(url, "GET", template_path(stem), timeout_s=_TIMEOUT_S)["index_templates"]
    except RequestRefused as error:
        if error.status != 404:
            raise
        return None
    template: dict[str, Any] = found["index_template"]
    if not is_ours(template):
        raise _foreign(f"index template {found['name']}", "rename or delete it")
    return template


def _is_same(present: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return True if the existing template has this content. Elasticsearch returns settings as nested objects of strings."""
    parts = {name: value for name, value in present.items() if value != []}  # without components
    inner, expected = dict(parts.pop("template", {})), {**wanted}
    wanted_inner = dict(expected.pop("template"))
    settings, wanted_settings = (_flat_settings(one.pop("settings", {})) for one in (inner, wanted_inner))
    return parts == expected and inner == wanted_inner and settings == wanted_settings


def _flat_settings(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat_settings(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def _foreign(what: str, remedy: str) -> Conflict:
    return Conflict(
        f"{what} is not Strandline's, and the results would need that name; nothing was changed. Emit under another name, or "
        f"{remedy}"
    )


def find_lacking(held: dict[str, Any], mapping: dict[str, Any]) -> list[str]:
    """Return the existing indices that lack a field of the mapping. Raises Conflict if a field has another type."""
    wanted = _flatten(mapping["properties"])
    lacking = []
    for index, one in held.items():
        present = _flatten(one["mappings"].get("properties", {}))
        for path, type_name in wanted.items():
            if present.get(path, type_name) != type_name:
                raise Conflict(
                    f"index {index} has {path} as {present[path]}, but in this pipeline it is {type_name}; "
                    f"emit under another name, or rename the field"
                )
        if not wanted.keys() <= present.keys():
            lacking.append(index)
    return lacking


def _add_fields(url: str, index: str, mapping: dict[str, Any], *, is_written: bool) -> None:
    try:
        request(url, "PUT", f"/{index}/_mapping", timeout_s=_TIMEOUT_S, body=mapping)
    except RequestRefused as error:
        if is_written or error.error_type != "cluster_block_exception":
            raise Conflict(str(error)) from error


def _lacking_aliases(
    held: dict[str, Any], emit_name: str, is_shown: bool, first: str, later: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the actions that add missing aliases to existing indices, with write aliases from `first` on. Raises
    Conflict.

    Args: later: A later generation that the alias shows; its windows would appear twice. None if it shows none.
    """
    is_filtered = any(_is_of_backfill(emit_name, *alias) for one in held.values() for alias in one["aliases"].items())
    for index, one in held.items():
        if index >= first and write_alias(index) not in one["aliases"]:
            yield {"add": {"index": index, "alias": write_alias(index), **_HIDDEN}}
        if not is_shown or emit_name in one["aliases"]:
            continue
        if is_filtered:
            raise Conflict(
                f"index {index} is no longer in the alias {emit_name}, and a backfill decides which of its windows the alias "
                f"shows. Run strandline job backfill: when it is complete, the alias is set for every index"
            )
        if later is not None:
            raise Conflict(
                f"index {index} is not in the alias {emit_name}, and the alias shows generation {later}, which replaced the "
                "results in this index; the ledger may be older than that. Nothing was changed; restore the newest copy of the "
                "ledger, or emit under another name"
            )
        yield {"add": {"index": index, "alias": emit_name}}


def _is_of_backfill(emit_name: str, alias: str, settings: dict[str, Any]) -> bool:
    """Return True if a backfill has set an alias: as its mark, or with a filter."""
    return alias.startswith(f"{emit_name}.shown.") or (alias == emit_name and "filter" in settings)


def _flatten(properties: dict[str, Any], prefix: str = "") -> dict[str, str]:
    types: dict[str, str] = {}
    for name, field in properties.items():
        if "properties" in field:
            if field.get("type") == "nested":
                types[prefix + name] = "nested"
            types |= _flatten(field["properties"], f"{prefix}{name}.")
        else:
            types[prefix + name] = str(field["type"])
    return types


def _put(url: str, path: str, body: dict[str, Any], method: str = "PUT") -> None:
    try:
        request(url, method, path, timeout_s=_TIMEOUT_S, body=body)
    except RequestRefused as error:
        raise Conflict(str(error)) from error
