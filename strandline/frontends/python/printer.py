"""Writes documents as a Python program that builds them."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from typing import Any

from strandline.core.errors import PermanentError
from strandline.frontends.document_text import RANGE_FIELDS
from strandline.frontends.steps import form_of, window_forms


def as_python(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as a program that ends with a name for each of them."""
    used: set[str] = set()
    names: dict[str, str] = {}
    lines: list[str] = []
    functions: set[str] = set()
    for document in documents:
        if "notice" in document:
            raise PermanentError(f"Python has no form for notice '{document['notice']}'; keep it in a file of YAML")
        kind = next(one for one in ("stream", "lookup", "pipeline") if one in document)
        name = _variable(document[kind], used)
        if kind == "pipeline":
            lines += ["", *_pipeline(name, document, names, functions)]
            continue
        functions.add(kind)
        names |= {document[kind]: name} if kind == "stream" else {}
        fields = {one: value for one, value in document.items() if one not in (kind, "schema")}
        arguments = [repr(document[kind]), f"schema={document['schema']!r}", *_keywords(fields)]
        lines += ["", f"{name} = {kind}(", *(f"    {one}," for one in arguments), ")"]
    return "\n".join([f"from strandline import {', '.join(sorted(functions))}", *lines, ""])


def _pipeline(name: str, document: Mapping[str, Any], streams: Mapping[str, str], functions: set[str]) -> list[str]:
    reads = _reads(document, streams)
    functions |= {"stream"} if any(one.startswith("stream(") for one in reads) else set()
    calls = [f".beside({', '.join(reads[1:])})"] if reads[1:] else []
    after_window = False
    for step in document["steps"]:
        taken = [step["from"]] if isinstance(step.get("from"), str) else step.get("from", ())
        if len(taken) == 1 and not isinstance(step["from"], str):
            raise PermanentError(f"Python has no form for 'from: {taken}'; write 'from: {taken[0]}', which is the same")
        taken = [step["join"]["left"]] if "join" in step else taken
        calls += [f".take_from({', '.join(map(repr, taken))})"] if taken else []
        own = {one: value for one, value in step.items() if one != "from"}
        named = [] if "emit" in own or "name" not in own else [f".named({own.pop('name')!r})"]
        calls += [*_calls(own, after_window and "from" not in step, functions), *named]
        after_window = ("window" in step or "join" in step) and "emit" not in step
    apart = ("pipeline", "input", "inputs", "event_time", "steps")
    fields = {one: value for one, value in document.items() if one not in apart}
    fields |= {one: value for one, value in document.get("input", {}).items() if one != "stream"}
    calls.append(f".pipeline({', '.join([repr(document['pipeline']), *_keywords(fields)])})")
    return [f"{name} = (", f"    {reads[0]}", *(f"    {one}" for one in calls), ")"]


def _reads(document: Mapping[str, Any], streams: Mapping[str, str]) -> list[str]:
    """Return the expressions that read each stream with its event time."""
    inputs = document.get("inputs")
    if inputs is not None and len(inputs) == 1:
        raise PermanentError(
            "Python has no form for 'inputs' of one stream; write 'input' and 'event_time', which is the same"
        )
    found = []
    for one in inputs or [{**document["input"], "event_time": document["event_time"]}]:
        range_ = {name: one[name] for name in RANGE_FIELDS if inputs is not None and name in one}
        read = ", ".join([*_event_time(one["event_time"]), *_keywords(range_)])
        name = one["stream"]
        found.append(f"{streams.get(name, f'stream({name!r})')}.event_time({read})")
    return found


def _event_time(event_time: Mapping[str, Any]) -> list[str]:
    said = [repr(event_time["field"])] if "field" in event_time else []
    said += [f"{name}_log=True" for name in ("from", "else") if name in event_time]
    return said + _keywords({one: value for one, value in event_time.items() if one not in ("field", "from", "else")})


def _calls(step: Mapping[str, Any], after_window: bool, functions: set[str]) -> list[str]:
    match step:
        case {"derive": derive, **rest} if not rest:
            return [f".derive({_named(derive, ())})"]
        case {"where": where, **rest} if not rest:
            return [f".where({where!r})"]
        case {"select": names, **rest} if not rest:
            return [f".select({', '.join(map(repr, names))})"]
        case {"drop": names, **rest} if not rest:
            return [f".drop({', '.join(map(repr, names))})"]
        case {"dedupe": dedupe, **rest} if not rest:
            return [f".dedupe({', '.join(_keywords(dedupe))})"]
        case {"distinct": distinct, **rest} if not rest:
            return [f".distinct({', '.join(_keywords(distinct))})"]
        case {"enrich": enrich, **rest} if not rest:
            return [f".enrich({', '.join([repr(enrich['lookup']), *_keywords(_without(enrich, 'lookup'))])})"]
        case {"map": mapped, **rest} if not rest:
            return [f".map({', '.join([repr(mapped['function']), *_keywords(_without(mapped, 'function'))])})"]
        case {"join": join, **rest} if set(rest) <= {"emit"}:
            emit = [_emit(rest["emit"], None)] if "emit" in rest else []
            return [_join(join), *emit]
        case {"window": window, **rest} if set(rest) <= {"emit"}:
            emit = [_emit(rest["emit"], None)] if "emit" in rest else []
            return [_window(window, functions), *emit]
        case {"emit": emit, **rest} if set(rest) <= {"name"} and not (after_window and not rest):
            return [_emit(emit, rest.get("name"))]
    return [f".step({dict(step)!r})"]


def _window(window: Mapping[str, Any], functions: set[str]) -> str:
    written = form_of(window)
    if written is None or not written.form.python:
        return f".step({{'window': {dict(window)!r}}})"
    value, (function, *fields) = window[written.form.keyword], written.form.python
    functions.add(function)
    more = {one: window[one] for one in ("offset", "tz") if one in window}
    values = [value[one] for one in fields if one in value] if fields else [value]
    windows = f"{function}({', '.join([*map(repr, values), *_keywords(more)])})"
    keys = [f"by={list(window['by'])!r}"] if window.get("by") else []
    aggregates = _named(window["aggregate"], ("name", "by", "aggregate", "windows", "self"), "aggregate=")
    return f".window({', '.join([windows, *_keywords({'name': window['name']}), *keys, aggregates])})"


def _join(join: Mapping[str, Any]) -> str:
    said = {one: value for one, value in join.items() if one not in ("left", "right", "within", "type", "add")}
    within = join.get("within", {})
    said |= {"within": within} if isinstance(within, str) else within or ({"after": "0s"} if "within" in join else {})
    said |= {"kind": join["type"]} if "type" in join else {}
    add = [_named(join["add"], _JOIN_PARAMETERS, "add=")] if join.get("add") else []
    return f".join({', '.join([repr(join['right']), *_keywords(said), *add])})"


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {one: value for one, value in values.items() if one != name}


def _emit(emits: list[Mapping[str, Any]], name: str | None) -> str:
    kinds = [kind for emit in emits for kind in emit]
    named = [] if name is None else [f"name={name!r}"]
    if len(set(kinds)) < len(kinds):
        return f".emit({', '.join([*(repr(dict(emit)) for emit in emits), *named])})"
    return f".emit({', '.join([*(f'{kind}={place!r}' for emit in emits for kind, place in emit.items()), *named])})"


def _named(values: Mapping[str, Any], taken: tuple[str, ...], parameter: str = "") -> str:
    """Return values by their names: as keywords if all names are valid keywords."""
    if all(one.isidentifier() and not keyword.iskeyword(one) and one not in taken for one in values):
        return ", ".join(_keywords(values))
    return f"{parameter}{dict(values)!r}"


def _keywords(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in values.items()]


def _variable(name: str, used: set[str]) -> str:
    """Return a name for a document that no other document has."""
    plain = "".join(one if one.isalnum() and one.isascii() else "_" for one in name)
    is_taken = keyword.iskeyword(plain) or plain in _function_names()
    plain = f"_{plain}" if not plain.isidentifier() or is_taken else plain
    while plain in used:
        plain += "_"
    used.add(plain)
    return plain


def _function_names() -> set[str]:
    """Return the names of the functions of `strandline` that a program can call."""
    return {"lookup", "stream", *(one.form.python[0] for one in window_forms().values() if one.form.python)}


_JOIN_PARAMETERS = (
    *("self", "other", "name", "on", "within", "before", "after", "tumbling", "same_window", "latest"),
    *("kind", "max_rows", "add"),
)
