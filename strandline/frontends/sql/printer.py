"""Writes documents as SQL text, which `translation.translate` reads back as the same documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.core.errors import PermanentError
from strandline.frontends.document_text import RANGE_FIELDS
from strandline.frontends.sql.nodes import EVENT_TIME, stage_name
from strandline.frontends.sql.queries import CLAUSES, step_functions
from strandline.frontends.sql.read_back import refuse_other_documents
from strandline.frontends.sql.translation import LOG_TIME, OPTIONS_OF_EVENT_TIME
from strandline.frontends.steps import NOT_OF_KIND, form_of
from strandline.results.sinks import registry as sinks

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED_WORDS = frozenset((
    *CLAUSES, "as", "null", "true", "false", "table", "case", "end", "begin", "with", "select", "by", "and", "or", "not", "join",
    "inner", "left", "right", "full", "cross", "semi", "anti", "natural", "asof", "distinct", "all", "interval", "primary",
    "foreign", "watermark", "constraint", "unique", "check", "lateral", "cube", "rollup", "grouping", "array", "map", "in", "is",
))  # fmt: skip
_ROWS_MAX = 10_000
"""Default of `max_rows` of a join."""


def as_sql(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as statements. Raises PermanentError for a step without a form in SQL, and if the statements would
    be read back as other documents."""
    names: set[str] = set()
    statements: list[str] = []
    documents = list(documents)
    for document in documents:
        if "notice" in document:
            raise PermanentError(f"SQL has no form for notice '{document['notice']}'; keep it in a file of YAML")
        if "pipeline" not in document:
            statements.append(_stream(document, "stream" if "stream" in document else "lookup"))
        else:
            statements += _Job(document, names).statements()
    text = "\n".join(f"{statement};\n" for statement in statements)
    refuse_other_documents(text, documents)
    return text


def _stream(document: Mapping[str, Any], kind: str) -> str:
    columns = ",\n".join(f"  {_column(name, field)}" for name, field in document["schema"].items())
    options = _flat({name: value for name, value in document.items() if name not in (kind, "schema")})
    return f"create {kind} {_name(document[kind])} (\n{columns}\n){_with(options)}"


def _column(name: str, field: Any) -> str:
    fields = {"type": field} if isinstance(field, str) else dict(field)
    kind = str(fields.pop("type"))
    is_optional = fields.pop("required", None) is False or kind.endswith("?")
    return f"{_name(name)} {kind.removesuffix('?')}{' null' if is_optional else ''}{_with(_flat(fields))}"


def _flat(value: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of a mapping, each with its path."""
    for name, inner in value.items():
        if isinstance(inner, Mapping) and inner and all(key and "." not in key for key in inner):
            yield from _flat(inner, (*above, name))
        else:
            yield (*above, name), inner


def _with(options: Iterable[tuple[tuple[str, ...], Any]]) -> str:
    said = [f"{_key(key)} = {_value(value)}" for key, value in options]
    return f" with ({', '.join(said)})" if said else ""


def _key(key: tuple[str, ...]) -> str:
    text = ".".join(key)
    return text if _PLAIN.fullmatch(text) else _quoted(text)


def _value(value: Any) -> str:
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return _quoted(value)
        case list():
            return f"array[{', '.join(_value(one) for one in value)}]"
        case Mapping():
            return f"map({', '.join(f'{_quoted(key)}, {_value(one)}' for key, one in value.items())})"
        case _:
            return repr(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped}'"


def _expression(text: str) -> str:
    """Return an expression as it was written. A newline ends a comment, so that it doesn't include the text that follows."""
    return f"{text}\n" if "--" in text else text


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name.lower() not in _QUOTED_WORDS else f"`{name}`"


@dataclass(frozen=True)
class _Rows:
    """Input of steps."""

    relation: str
    is_windowed: bool
    """True if the rows are results of windows."""
    streams: frozenset[int]
    """Indices of the streams from which the rows come."""


class _Job:
    """One job: a view for each relation that is read more than once, and an insert for each emission."""

    def __init__(self, document: Mapping[str, Any], names: set[str]) -> None:
        """Args: names: Names of existing views; those of the job are added. Raises PermanentError for steps without a form in
        SQL."""
        self._document = document
        self._names = names
        self._views: list[str] = []
        self._inserts: list[str] = []
        self._inputs = document.get("inputs") or [{**document["input"], "event_time": document["event_time"]}]
        self._known = {
            one["stream"]: _Rows(_name(one["stream"]), False, frozenset([at])) for at, one in enumerate(self._inputs)
        }
        """Name -> input of steps."""
        self._rows = self._known[self._inputs[0]["stream"]]
        """Input of the next query."""
        self._has_window = False

    def statements(self) -> list[str]:
        """Return the views, and then the job."""
        steps = list(self._document["steps"])
        wanted = {name for step in steps for name in _taken_by(step)}
        for run in _runs(steps, wanted):
            if taken := run[0].get("from"):
                self._rows = self._known[taken] if isinstance(taken, str) else self._united(taken)
            name = _name_taken_from(run[-1], wanted)
            self._run([{key: one for key, one in step.items() if key != "from"} for step in run], name)
            if name is not None:
                self._known[name] = self._rows
        head = f"create job {_name(self._document['pipeline'])}{_with(self._options())} as\n"
        if len(self._inserts) == 1:
            return [*self._views, head + self._inserts[0]]
        body = "".join("\n".join(f"  {line}" for line in one.split("\n")) + ";\n" for one in self._inserts)
        return [*self._views, f"{head}begin\n{body}end"]

    def _united(self, names: Sequence[str]) -> _Rows:
        parts = [self._known[name] for name in names]
        if len(parts) == 1:
            raise PermanentError(
                f"SQL has no form for 'from: [{names[0]}]'; write 'from: {names[0]}', which is the same"
            )
        view = self._view(None, "\nunion all\n".join(f"select * from {part.relation}" for part in parts))
        return _Rows(
            view, any(part.is_windowed for part in parts), frozenset().union(*(part.streams for part in parts))
        )

    def _run(self, steps: Sequence[Mapping[str, Any]], name: str | None) -> None:
        """Write consecutive steps, each with the output of the step before as its input. `name`: name of the last step, if
        other steps use its output."""
        while steps:
            taken = _taken(steps)
            here, steps = steps[:taken], steps[taken:]
            if not here:
                self._insert(self._places(steps[0]), steps[0].get("name"), f"select * from {self._rows.relation}")
                steps = steps[1:]
                continue
            stage = next((found for step in here if (found := stage_name(step)) is not None), None)
            verb = next((one for one in step_functions() if one in here[0]), None)
            if "join" in here[0]:
                query, stage = self._joined(here[0]["join"])
            elif verb is not None:
                query = self._step(verb, here[0][verb])
            else:
                query = self._windowed(here) if stage is not None else self._plain(here)
            emission = next((step for step in here if "emit" in step), None)
            if emission is None and steps and "emit" in steps[0] and stage_name(steps[0]) is None:
                emission, steps = steps[0], steps[1:]
            if emission is not None and not steps and name is None and "join" not in here[0]:
                self._insert(self._places(emission), emission.get("name"), query)
                continue
            view = self._view(stage or (name if not steps else None), query)
            self._rows = replace(self._rows, relation=view)
            if emission is not None:
                self._insert(self._places(emission), emission.get("name"), f"select * from {view}")

    def _options(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        own = ("pipeline", "input", "inputs", "event_time", "steps")
        rest = _flat({name: value for name, value in self._document.items() if name not in own})
        if "inputs" in self._document:
            yield from _flat({"inputs": {one["stream"]: _input_options(one) for one in self._inputs}})
            yield from rest
            return
        for name, value in self._document["input"].items():
            if name != "stream":
                yield (name,) if name in RANGE_FIELDS else ("input", name), value
        for name, value in self._document["event_time"].items():
            if name in OPTIONS_OF_EVENT_TIME:
                yield (name,), value
            elif name != "field":
                yield ("event_time", name), value
            elif not self._has_window:
                yield ("event_time",), value
        yield from rest

    def _view(self, stage: str | None, query: str) -> str:
        wanted = stage or f"{re.sub(r'[^A-Za-z0-9_]', '_', self._document['pipeline'])}_rows"
        name = wanted if _PLAIN.match(wanted) else f"v_{wanted}"
        number = 1
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        self._views.append(f"create view {_name(name)} as\n{query}")
        return _name(name)

    def _insert(self, places: str, name: str | None, query: str) -> None:
        named = f" as {_name(name)}" if name is not None else ""
        self._inserts.append(f"insert into {places}{named}\n{query}")

    def _places(self, step: Mapping[str, Any]) -> str:
        return ", ".join(_place(emit) for emit in step["emit"])

    def _plain(self, steps: Sequence[Mapping[str, Any]]) -> str:
        said = {verb: value for step in steps for verb, value in step.items() if verb != "name"}
        derive = {name: f"{_expression(text)} as {_name(name)}" for name, text in said.get("derive", {}).items()}
        if "select" in said:
            items = [derive.get(name, _name(name)) for name in said["select"]]
        else:
            drop = ", ".join(map(_name, said.get("drop", ())))
            items = [f"* except ({drop})" if drop else "*", *derive.values()]
        where = f"\nwhere {_expression(said['where'])}" if "where" in said else ""
        return f"select {', '.join(items)}\nfrom {self._rows.relation}{where}"

    def _step(self, verb: str, fields: Any) -> str:
        """Return the query of a step that is a function of a relation."""
        if not isinstance(fields, Mapping):
            raise PermanentError(f"SQL has no form for '{verb}: {fields}'; keep this document in YAML")
        arguments = [
            f"table {self._rows.relation}",
            *(f"{_name(one)} => {_value(value)}" for one, value in fields.items()),
        ]
        return f"select * from table({verb}({', '.join(arguments)}))"

    def _joined(self, join: Mapping[str, Any]) -> tuple[str, str]:
        """Return a join and its name: as a clause, or if a clause can't express it, as a function of two relations."""
        sides = [self._known[join[side]] for side in ("left", "right")]
        self._rows = _Rows("", True, sides[0].streams | sides[1].streams)
        if join.get("max_rows", _ROWS_MAX) == _ROWS_MAX and join["name"] not in self._names:
            self._has_window |= not all(one.is_windowed for one in sides)  # the clause names the column of event time
            return self._join_clause(join, sides), join["name"]
        fields = [f"{_name(one)} => {_value(value)}" for one, value in join.items() if one not in ("left", "right")]
        return f"select * from table(join({', '.join([*(f'table {one.relation}' for one in sides), *fields])}))", join[
            "name"
        ]

    def _join_clause(self, join: Mapping[str, Any], sides: Sequence[_Rows]) -> str:
        times = ["window_time" if one.is_windowed else self._time_of(one) for one in sides]
        conditions = [f"l.{_name(one)} = r.{_name(one)}" for one in join["on"]]
        if (size := join.get("tumbling")) is not None:
            sources = [
                f"table(tumble(table {one.relation}, descriptor({time}), {_interval(size)}))"
                for one, time in zip(sides, times, strict=True)
            ]
        else:
            sources = [one.relation for one in sides]
        if "within" not in join:
            conditions += [f"l.{one} = r.{one}" for one in ("window_start", "window_end")]
        else:
            within = join["within"]
            within = {"before": within, "after": within} if isinstance(within, str) else within
            low, high = (
                f"l.{times[0]}" + (f" {sign} {_interval(within[name])}" if within.get(name, "0s") != "0s" else "")
                for name, sign in (("before", "-"), ("after", "+"))
            )
            conditions.append(f"r.{times[1]} between {low} and {high}")
        keys = [_name(one) for one in join["on"]]
        is_full = join.get("type") == "full"
        items = [f"coalesce(l.{one}, r.{one}) as {one}" if is_full else f"l.{one}" for one in keys]
        for name, taken in join.get("add", {}).items():
            side, _, column = taken.partition(".")
            items.append(f"{side[0]}.{_name(column)}" + (f" as {_name(name)}" if name != column else ""))
        kind = "asof " if join.get("latest") else ""
        kind += "" if join.get("type", "inner") == "inner" else f"{join['type']} "
        return f"select {', '.join(items)}\nfrom {sources[0]} as l\n{kind}join {sources[1]} as r\non {' and '.join(conditions)}"

    def _time_of(self, rows: _Rows) -> str:
        """Return the column of event time of these records."""
        of_streams = [self._inputs[at]["event_time"] for at in sorted(rows.streams)]
        columns = {LOG_TIME if one.get("from") == "log" else str(one.get("field")) for one in of_streams}
        return _name(columns.pop()) if len(columns) == 1 else EVENT_TIME

    def _windowed(self, steps: Sequence[Mapping[str, Any]]) -> str:
        at = next(number for number, step in enumerate(steps) if "window" in step)
        window = steps[at]["window"]
        keys = [_name(name) for name in window.get("by", ())]
        items = [*keys, "window_start", "window_end"]
        items += [f"{_expression(text)} as {_name(name)}" for name, text in window["aggregate"].items()]
        rows = self._rows
        time_column = "window_time" if rows.is_windowed else self._time_of(rows)
        self._has_window |= not rows.is_windowed
        self._rows = replace(rows, is_windowed=True)
        query = f"select {', '.join(items)}\nfrom table({_function(window, rows.relation, time_column)})"
        query += f" as {_name(window['name'])}"
        query += "".join(f"\nwhere {_expression(step['where'])}" for step in steps[:at])
        query += f"\ngroup by {', '.join([*keys, 'window_start', 'window_end'])}"
        return query + "".join(f"\nhaving {_expression(step['where'])}" for step in steps[at + 1 :])


def _input_options(read: Mapping[str, Any]) -> dict[str, Any]:
    """Return one of several inputs as options."""
    range_ = {name: read[name] for name in RANGE_FIELDS if name in read}
    return range_ | {"event_time" if name == "field" else name: value for name, value in read["event_time"].items()}


def _taken_by(step: Mapping[str, Any]) -> list[str]:
    """Return the names of a step's inputs."""
    if "join" in step:
        return [step["join"][side] for side in ("left", "right")]
    taken = step.get("from", [])
    return [taken] if isinstance(taken, str) else list(taken)


def _runs(steps: Sequence[Mapping[str, Any]], wanted: set[str]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Split the steps before each step with another input than the step before it, and after each step that is the input of
    another."""
    first = 0
    for at, step in enumerate(steps):
        if at > first and ("from" in step or "join" in step or _name_taken_from(steps[at - 1], wanted) is not None):
            yield steps[first:at]
            first = at
    yield steps[first:]


def _name_taken_from(step: Mapping[str, Any], wanted: set[str]) -> str | None:
    """Return the name of the step if it is the input of another step. None otherwise."""
    stage = stage_name(step)
    name = stage or step.get("name")
    if name in wanted and "emit" in step and stage is None:
        raise PermanentError(
            f"SQL has no form for a step with the emission '{name}' as its input; keep this document in YAML"
        )
    return name if name in wanted else None


def _taken(steps: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of steps that one query contains: `where, window, where`, or `where, derive, select | drop`, all
    optional."""
    if "join" in steps[0] or any(verb in steps[0] for verb in step_functions()):
        return 1
    at = 1 if "where" in steps[0] else 0
    if at < len(steps) and "window" in steps[at]:
        written = form_of(steps[at]["window"])
        if at and written is not None and written.form.is_made_by_rows:
            return at  # after such a function, a condition would apply to rows that have already made windows
        if "emit" not in steps[at] and at + 1 < len(steps) and "where" in steps[at + 1]:
            return at + 2
        return at + 1
    derived: Mapping[str, Any] = {}
    if at < len(steps) and "derive" in steps[at]:
        derived = steps[at]["derive"]
        at += 1
    if at < len(steps) and (
        "drop" in steps[at] or ("select" in steps[at] and derived.keys() <= set(steps[at]["select"]))
    ):
        at += 1
    if at == 0 and not {"emit", "name"} >= set(steps[0]):
        raise PermanentError(f"SQL has no form for a step '{', '.join(steps[0])}'; keep this document in YAML")
    return at


def _function(window: Mapping[str, Any], relation: str, time_column: str) -> str:
    """Return the windowing function for the fields of a window."""
    written, unsaid = form_of(window), set(window) - NOT_OF_KIND
    values = written.values(window) if written is not None and len(unsaid) == 1 else None
    if written is None or values is None:
        raise PermanentError(
            f"SQL has no form for a window with {', '.join(sorted(unsaid))}; keep this document in YAML"
        )
    has_offset = "offset" in window and (written.has_offset or window["offset"] != "0s")
    more = [_interval(window["offset"])] if has_offset else []
    more += [f"tz => {_quoted(window['tz'])}"] if "tz" in window else []
    by = ""
    if written.form.has_partitions and window.get("by"):
        by = f" partition by ({', '.join(map(_name, window['by']))})"
    shown = [_interval(value) if kind == "duration" else _value(value) for kind, value in values]
    arguments = [f"table {relation}{by}", f"descriptor({time_column})", *shown, *more]
    return f"{written.form.function}({', '.join(arguments)})"


def _interval(duration: str) -> str:
    """Return a duration of a single unit as an interval, and another duration unchanged."""
    units = {"ms": "millisecond", "s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}
    found = re.fullmatch(r"(\d+)(ms|s|m|h|d|w)", duration)
    return f"interval '{found[1]}' {units[found[2]]}" if found else _quoted(duration)


def _place(emit: Mapping[str, Any]) -> str:
    ((kind, place),) = emit.items()
    if isinstance(place, str):
        return f"{kind} {_quoted(place)}"
    named = sinks.form_of(kind).named
    return f"{kind} {_quoted(place[named])}{_with(_flat({key: one for key, one in place.items() if key != named}))}"
