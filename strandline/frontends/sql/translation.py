"""Translates SQL scripts into documents.

`translate` returns the content of a YAML file. It also locates later errors in the SQL text: errors of the model, of the check
against a stream, or of a control service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.documents import Path, YamlDocument, nearest_of
from strandline.core.errors import InvalidDocument, Problem
from strandline.frontends.document_text import RANGE_FIELDS, window_name, write_documents
from strandline.frontends.sql.nodes import EVENT_TIME, Emission, Node
from strandline.frontends.sql.reader import read_script
from strandline.frontends.sql.relations import Relations, StepCount
from strandline.frontends.sql.statements import CreateJob, CreateStream, Insert, Option, Script, SinkEntry
from strandline.frontends.sql.step_order import ordered_steps
from strandline.frontends.sql.tokens import SqlText
from strandline.results.sinks.registry import form_of

LOG_TIME = "log_time"
"""Name in descriptor(...) for the time of arrival."""
OPTIONS_OF_EVENT_TIME = ("delay", "idle_timeout", "max_ahead", "watermark", "from", "else")
"""Options of a job that belong below `event_time` in its document. `start` belongs below `input`."""
_OWN_OPTIONS = ("pipeline", "steps", "stream", "schema")


@dataclass(frozen=True)
class SqlDocument:
    """A document, and the offset of each value in the SQL text."""

    kind: str
    name: str
    data: dict[str, Any]
    places: dict[Path, int]


@dataclass(frozen=True)
class Translation:
    """A SQL text as documents."""

    sql: SqlText
    documents: tuple[SqlDocument, ...]
    yaml: str
    """The documents as a YAML file."""
    _first_lines: tuple[int, ...]
    """First line of each document in `yaml`."""

    def locate_in_sql(self, problem: Problem) -> Problem:
        """Return a problem of a line of `yaml` with its position in the SQL text instead."""
        line = problem.line or 1
        at = max(number for number, first in enumerate(self._first_lines) if first <= line or number == 0)
        offset = nearest_of(self.documents[at].places, problem.path) or 0
        return self.sql.problem(offset, problem.message, problem.path)

    def yaml_documents(self) -> list[YamlDocument]:
        """Return the documents as data. Lines are those of the SQL text."""
        return [
            YamlDocument(
                one.kind,
                one.name,
                one.data,
                self.sql.source,
                {path: self.sql.place(offset)[0] for path, offset in one.places.items()},
            )
            for one in self.documents
        ]


def translate(text: str | bytes, source: str) -> Translation:
    """Return the documents of a SQL text. Raises InvalidDocument with the errors of its statements, each with line and column.
    The content of the documents, and whether they fit their streams, isn't checked yet."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidDocument([Problem("is not UTF-8 text; save it as UTF-8", source=source)]) from error
    sql = SqlText(text, source)
    script = read_script(sql)
    documents: list[SqlDocument] = []
    problems: list[Problem] = []
    counts = StepCount()
    for statement in script.streams_and_jobs:
        try:
            if isinstance(statement, CreateStream):
                documents.append(_stream(sql, statement))
            else:
                documents.append(_job(sql, statement, script, counts))
        except InvalidDocument as error:
            problems += error.problems
    if problems:
        raise InvalidDocument(problems)
    texts = [write_documents([one.data]) for one in documents]
    first_lines, line = [], 1
    for one in texts:
        first_lines.append(line)
        line += one.count("\n") + 1  # the line of `---`
    return Translation(sql, tuple(documents), "---\n".join(texts), tuple(first_lines))


def _stream(sql: SqlText, statement: CreateStream) -> SqlDocument:
    data: dict[str, Any] = {statement.kind: statement.name}
    places: dict[Path, int] = {(): statement.at}
    options: dict[str, Any] = {}
    for option in statement.options:
        _set(sql, options, places, option.key, option)
    schema: dict[str, Any] = {}
    for column in statement.columns:
        path: Path = ("schema", column.name)
        places[path] = column.at
        field: dict[str, Any] = {"type": column.type} | ({"required": False} if column.is_optional else {})
        for option in column.options:
            if option.key[0] in ("type", "required"):
                raise sql.error(option.at, "the type and 'null' must be before 'with'")
            _set(sql, field, places, option.key, option, path)
        is_short = len(field) == 1 + column.is_optional
        schema[column.name] = f"{column.type}{'?' if column.is_optional else ''}" if is_short else field
    return SqlDocument(statement.kind, statement.name, {**data, **options, "schema": schema}, places)


def _job(sql: SqlText, statement: CreateJob, script: Script, counts: StepCount) -> SqlDocument:
    """Return the document of a job: 1. Find the relation that each insert reads. 2. Write the steps of all relations,
    with emissions for the inserts. 3. Add the options.
    """
    relations = Relations(sql, script.views, counts)
    nodes: list[tuple[Insert, Node]] = []
    for insert in statement.inserts:
        node = relations.of_insert(insert.query, _stage_name(insert))
        if insert.stage is not None and node.is_windowed and insert.stage[0] != node.window_name():
            raise sql.error(
                insert.stage[1],
                f"these are results of window '{node.window_name()}', so the stage has its name; remove this name",
            )
        emits = tuple(_emit(sql, place) for place in insert.places)
        node.emissions.append(Emission(emits, None if node.is_windowed else insert.stage, insert.at))
        nodes.append((insert, node))
    way = _of_all([node for _, node in nodes])
    streams = [str(node.name) for node in way if node.is_stream]
    claims: dict[str, list[tuple[str, int]]] = {stream: [] for stream in streams}
    for claim in (claim for node in way for claim in node.claims):
        claims[claim.stream].append((claim.column, claim.at))
    places: dict[Path, int] = {(): statement.at, ("steps",): statement.inserts[0].at}
    more: dict[str, Any] = {}
    for option in statement.options:
        _set(sql, more, places, _path_of_job_option(sql, option), option)
    if "inputs" in more or len(streams) > 1:
        read = _inputs(sql, more, claims, places)
        streams = [one["stream"] for one in read["inputs"]]
    else:
        read = {"input": {"stream": streams[0], **more.pop("input", {})}, "event_time": more.pop("event_time", {})}
        places |= {path: way[0].at for path in (("input",), ("input", "stream"))}
        places.setdefault(("event_time",), statement.at)
        _event_time(sql, read["event_time"], claims[streams[0]], places)
    steps, places_of_steps = ordered_steps([node for _, node in nodes], streams)
    data = {"pipeline": statement.name, **read, "steps": steps, **more}
    return SqlDocument("pipeline", statement.name, data, places | places_of_steps)


def _of_all(nodes: Sequence[Node]) -> list[Node]:
    """Return the relations from which these take rows, each once, in the order in which inserts use them."""
    found: dict[int, Node] = {}
    for node in nodes:
        found |= {id(one): one for one in node.way() if id(one) not in found}
    return list(found.values())


def _inputs(
    sql: SqlText, more: dict[str, Any], claims: dict[str, list[tuple[str, int]]], places: dict[Path, int]
) -> dict[str, Any]:
    """Return `inputs` of a job with several streams: those named by its options, in their order, then those that queries read.
    An option of event time without a stream applies to all streams that don't set it."""
    said, for_all = more.pop("inputs", {}), more.pop("event_time", {})
    range_of_all = more.pop("input", {})
    if not isinstance(said, dict) or not all(isinstance(one, dict) for one in said.values()):
        raise sql.error(places["inputs",], "expected options for each stream, as 'inputs.turbines.delay' = '10s'")
    found = []
    for number, stream in enumerate(dict.fromkeys((*said, *claims))):
        claimed = next((at for _, at in claims.get(stream, [])), places[()])
        at = places.get(("inputs", stream), places.get(("inputs",), claimed))
        options = said.get(stream, {})
        own = {name: value for name, value in options.items() if name not in RANGE_FIELDS}
        range_ = range_of_all | {name: options[name] for name in RANGE_FIELDS if name in options}
        event_time = for_all | {"field" if name == "event_time" else name: value for name, value in own.items()}
        path: Path = ("inputs", number)
        places |= {path: at, (*path, "stream"): at, (*path, "event_time"): at}
        for name in own:
            inner = ("field",) if name == "event_time" else (name,)
            places[(*path, "event_time", *inner)] = places.get(("inputs", stream, name), at)
        _event_time(sql, event_time, claims.get(stream, []), places, path)
        found.append({"stream": stream, **range_, "event_time": event_time})
    return {"inputs": found}


def _event_time(
    sql: SqlText,
    event_time: dict[str, Any],
    claims: Sequence[tuple[str, int]],
    places: dict[Path, int],
    above: Path = (),
) -> None:
    """Set the field of event time: the column of the first descriptor(...), or the option `event_time.field` if there is none."""
    happened = " of this stream: with ('inputs.STREAM.event_time' = 'COLUMN', 'inputs.STREAM.delay' = '10s')"
    happened = happened if above else ": with (event_time = 'COLUMN', delay = '10s')"
    is_said = "field" in event_time or "from" in event_time
    named = [one for one in claims if one[0] != EVENT_TIME]
    claims = named if above and (is_said or named) else claims
    if not claims:
        if not is_said:
            raise sql.error(places[above], f"doesn't name the column of event time{happened}")
        return
    column, at = claims[0]
    for other, other_at in claims:
        if other != column:
            raise sql.error(
                other_at, f"event time is '{column}' in another insert, but a stream has one event time in a job"
            )
    if event_time.get("from") == "log":
        if column != LOG_TIME:
            raise sql.error(at, f"event time is the time of arrival here; write descriptor({LOG_TIME})")
        return
    if event_time.setdefault("field", column) != column:
        raise sql.error(at, f"event time is '{event_time['field']}' in the job's 'with (...)'; use one of them")
    places.setdefault((*above, "event_time", "field"), at)
    ordered = {"field": event_time["field"], **{name: value for name, value in event_time.items() if name != "field"}}
    event_time.clear()
    event_time.update(ordered)


def _stage_name(insert: Insert) -> str:
    """Return the name of the windows of an insert whose query has none: the name after `as`, or the name of the first sink."""
    if insert.stage is not None:
        return insert.stage[0]
    return window_name(insert.places[0].name)


def _emit(sql: SqlText, place: SinkEntry) -> tuple[dict[str, Any], int]:
    """Return an entry of `emit`. In the long form, the name of the sink is one of its fields, for example `path`."""
    form = form_of(place.kind)
    options: dict[str, Any] = {}
    for option in place.options:
        _set(sql, options, {}, option.key, option)
    if form.options_elsewhere and options:
        raise sql.error(place.options[0].at, form.options_elsewhere)
    if form.has_short_form and not options:
        return {place.kind: place.name}, place.at
    if form.named in options:
        raise sql.error(
            place.at, f"has its {form.named} in quotes already; remove '{form.named}' from its 'with (...)'"
        )
    return {place.kind: {form.named: place.name, **options}}, place.at


def _path_of_job_option(sql: SqlText, option: Option) -> Path:
    first = option.key[0]
    if first in _OWN_OPTIONS or option.key[:2] == ("input", "stream"):
        raise sql.error(option.at, f"'{'.'.join(option.key)}' follows from the statement itself; remove it")
    if len(option.key) == 1 and first in OPTIONS_OF_EVENT_TIME:
        return ("event_time", first)
    if option.key == ("event_time",):
        return ("event_time", "field")
    if len(option.key) == 1 and first in RANGE_FIELDS:
        return ("input", *option.key)
    return option.key


def _set(
    sql: SqlText, data: dict[str, Any], places: dict[Path, int], path: Path, option: Option, above: Path = ()
) -> None:
    """Set the value of an option at its path."""
    inner = data
    for part in path[:-1]:
        inner = inner.setdefault(str(part), {})
        if not isinstance(inner, dict):
            raise sql.error(option.at, f"'{part}' has a value already; remove one")
    if str(path[-1]) in inner:
        raise sql.error(option.at, f"'{'.'.join(map(str, path))}' occurs twice; remove one")
    inner[str(path[-1])] = option.value
    for length in range(1, len(path) + 1):
        places.setdefault((*above, *path[:length]), option.at)
