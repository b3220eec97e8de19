"""Reader of statements: `create stream`, `create view`, and `create job`.

```
create stream turbines (turbine string, ts timestamp, wind double null with (min = 0)) with (key = 'turbine');
create view loads as select *, power / rated_power as load from turbines;
create job 'turbine-health' with (delay = '10s') as
begin
  insert into elasticsearch 'turbine-minute' select ...;
  insert into stream 'minutes', elasticsearch 'other' select ...;
end;
```
"""

from __future__ import annotations

import re

from sqlglot import Token, TokenType

from strandline.core.errors import PROBLEMS_MAX, InvalidDocument, Problem
from strandline.frontends.sql.queries import read_query
from strandline.frontends.sql.statements import (
    ColumnDefinition,
    CreateJob,
    CreateStream,
    Insert,
    NamedQuery,
    Option,
    Query,
    Script,
    SinkEntry,
)
from strandline.frontends.sql.tokens import Cursor, SqlText
from strandline.frontends.sql.values import read_value
from strandline.results.sinks.registry import SINKS

_EXPECTED = "'create stream NAME (...)', 'create view NAME as select ...' or 'create job NAME as insert into ...'"
_TYPES = {
    "varchar": "string", "char": "string", "text": "string", "int": "integer", "bigint": "long", "bool": "boolean",
    "double precision": "double", "timestamp_ltz": "timestamp", "timestamptz": "timestamp", "jsonb": "json",
}  # fmt: skip
"""Other names in SQL for the types of fields."""
_WITHOUT_LENGTH = ("string", "timestamp")
_INSTEAD = {
    "table": "write 'create stream NAME (...)': jobs read streams",
    "source": "write 'create stream NAME (...)': jobs read streams",
    "sink": "name the sink in the insert: insert into elasticsearch 'NAME' select ...",
    "materialized": "write 'create job NAME as insert into ...': a job writes results to a store",
    "function": "your own functions are not supported",
    "or": "remove 'or replace': applying a document registers it, or creates its next version",
    "temporary": "write 'create view': a view exists only in its file",
}


def read_script(sql: SqlText) -> Script:
    """Return the statements of the text. Raises InvalidDocument with the first error of each statement."""
    cursor = Cursor(sql)
    script = Script()
    problems: list[Problem] = []
    while cursor.token() is not None and len(problems) <= PROBLEMS_MAX:
        if cursor.takes(TokenType.SEMICOLON):
            continue
        start = cursor.at
        try:
            _statement(cursor, script)
            if cursor.token() is not None:
                cursor.expect(TokenType.SEMICOLON, ";")
        except InvalidDocument as error:
            problems += error.problems
            cursor.skip_statement(start)
    if not script.streams_and_jobs and not problems:
        problems.append(
            Problem(f"contains no statement that creates a document; expected {_EXPECTED}", source=sql.source)
        )
    if problems:
        raise InvalidDocument(problems)
    return script


def _statement(cursor: Cursor, script: Script) -> None:
    if cursor.word() == "insert":
        raise cursor.error("an insert must be in a job with a name: create job NAME as insert into ...")
    if cursor.word() in ("select", "with"):
        raise cursor.error("results need a sink: create job NAME as insert into elasticsearch 'NAME' select ...")
    if not cursor.takes_words("create"):
        raise cursor.expected(_EXPECTED)
    if cursor.word() in ("stream", "lookup"):
        kind = cursor.word()
        cursor.take()
        script.streams_and_jobs.append(_stream(cursor, kind))
    elif cursor.takes_words("view"):
        view = _view(cursor)
        if view.name in script.views:
            raise cursor.sql.error(view.at, f"there is a view '{view.name}' already; choose another name")
        script.views[view.name] = view
    elif cursor.takes_words("job"):
        script.streams_and_jobs.append(_job(cursor))
    elif instead := _INSTEAD.get(cursor.word()):
        raise cursor.error(f"'{cursor.word()}' can't be created here; {instead}")
    else:
        raise cursor.expected("'stream', 'lookup', 'view' or 'job'")


def _stream(cursor: Cursor, kind: str) -> CreateStream:
    name, at = cursor.name(f"the name of the {kind}")
    if cursor.kind() != TokenType.L_PAREN:
        raise cursor.expected(f"'(' and the columns of the {kind}")
    cursor.take()
    columns = [_column(cursor)]
    while cursor.takes(TokenType.COMMA):
        columns.append(_column(cursor))
    cursor.expect(TokenType.R_PAREN, ")")
    names: set[str] = set()
    for column in columns:
        if column.name in names:
            raise cursor.sql.error(column.at, f"there is a column '{column.name}' already; remove one")
        names.add(column.name)
    return CreateStream(kind, name, tuple(columns), _options(cursor), at)


def _column(cursor: Cursor) -> ColumnDefinition:
    if cursor.word() == "watermark" and cursor.word(1) == "for":
        raise cursor.error(
            "a watermark belongs to the job that reads the stream: create job NAME with (delay = '10s') as ...;"
            " its column is that of descriptor(...)"
        )
    if (cursor.word(), cursor.word(1)) in (("primary", "key"), ("foreign", "key")) or (
        cursor.word() in ("constraint", "unique", "check") and cursor.kind(1) == TokenType.L_PAREN
    ):
        raise cursor.error("a stream has no constraints; 'key' in its 'with (...)' chooses the partition of a record")
    name, at = cursor.name("the name of a column")
    kind = _type(cursor)
    is_optional = False
    while cursor.word() in ("not", "null", "primary", "default", "generated", "as"):
        if cursor.takes_words("not", "null"):
            continue
        if not cursor.takes_words("null"):
            raise cursor.error(
                f"'{cursor.word()}' is not supported; a column can have a type, 'null' if it is optional, and 'with'"
            )
        is_optional = True
    return ColumnDefinition(name, kind, is_optional, _options(cursor), at)


def _type(cursor: Cursor) -> str:
    word = cursor.word()
    if not word:
        raise cursor.expected("the type of the column")
    begin = cursor.take()
    if word in ("array", "struct"):
        return _nested_type(cursor, begin)
    if word == "double" and cursor.takes_words("precision"):
        word = "double"
    kind = _TYPES.get(word, word)
    digits: list[str] = []
    if cursor.takes(TokenType.L_PAREN):
        digits.append(cursor.expect(TokenType.NUMBER, "a number").text)
        while cursor.takes(TokenType.COMMA):
            digits.append(cursor.expect(TokenType.NUMBER, "a number").text)
        cursor.expect(TokenType.R_PAREN, ")")
    if kind in ("decimal", "numeric", "dec"):
        digits = digits or ["10"]
        return f"decimal({','.join(digits if len(digits) > 1 else [*digits, '0'])})"
    if digits and kind not in _WITHOUT_LENGTH:
        return f"{kind}({','.join(digits)})"  # not a type: the model reports it
    return kind


def _nested_type(cursor: Cursor, begin: Token) -> str:
    """Read `array<bigint>` or `struct<a: string, b: double>`, up to the closing bracket. The model validates it."""
    tokens = [begin]
    depth = 0
    while depth or len(tokens) == 1:
        token = cursor.token()
        if token is None or (len(tokens) == 1 and token.token_type != TokenType.LT):
            raise cursor.expected("'<' and the type of its elements, as array<double>")
        depth += cursor.sql.raw(token).count("<") - cursor.sql.raw(token).count(">")
        tokens.append(cursor.take())
    # A word before a colon is a name, even if it is the name of a type.
    return re.sub(r"\b\w+\b(?!\s*:)", lambda found: _TYPES.get(found[0], found[0]), cursor.sql.written(tokens))


def _view(cursor: Cursor) -> NamedQuery:
    name, at = cursor.name("the name of the view")
    cursor.expect_words("as")
    return NamedQuery(name, read_query(cursor), at)


def _job(cursor: Cursor) -> CreateJob:
    name, at = cursor.name("the name of the job")
    options = _options(cursor)
    cursor.expect_words("as")
    inserts: list[Insert] = []
    if cursor.word() == "begin":
        cursor.take()
        cursor.takes_words("statement", "set")
        while not cursor.takes(TokenType.END):
            inserts.append(_insert(cursor))
            if cursor.kind() != TokenType.END:
                cursor.expect(TokenType.SEMICOLON, ";")
        if not inserts:
            raise cursor.sql.error(at, "contains no insert; expected 'insert into elasticsearch 'NAME' select ...'")
    elif cursor.word() in ("select", "with"):
        query = read_query(cursor)
        inserts.append(Insert((SinkEntry(next(iter(SINKS)), name, (), at),), None, query, at))
    else:
        inserts.append(_insert(cursor))
    return CreateJob(name, options, tuple(inserts), at)


def _insert(cursor: Cursor) -> Insert:
    at = cursor.here
    if not cursor.takes_words("insert"):
        raise cursor.expected("'insert into'")
    if cursor.word() == "overwrite":
        raise cursor.error("results are written once and never replaced; write 'insert into'")
    cursor.expect_words("into")
    places = [_place(cursor)]
    while cursor.takes(TokenType.COMMA):
        places.append(_place(cursor))
    stage = cursor.name("the name of the stage") if cursor.takes_words("as") else None
    query: Query = read_query(cursor)
    return Insert(tuple(places), stage, query, at)


def _place(cursor: Cursor) -> SinkEntry:
    at = cursor.here
    kind = cursor.word()
    if kind not in SINKS:
        raise cursor.expected(f"a sink: one of {', '.join(SINKS)}, and a name in quotes")
    cursor.take()
    if cursor.word() in ("select", "with", "values"):
        raise cursor.expected(f"the name of the sink, as {kind} 'NAME'")
    name, _ = cursor.name(f"the name of the sink, as {kind} 'NAME'")
    return SinkEntry(kind, name, _options(cursor), at)


def _options(cursor: Cursor) -> tuple[Option, ...]:
    """Read `with (key = value, ...)`. Empty if there is none."""
    if cursor.word() != "with" or cursor.kind(1) != TokenType.L_PAREN:
        return ()
    cursor.take(), cursor.take()
    found: list[Option] = []
    while True:
        option = _option(cursor)
        if any(option.key == one.key for one in found):
            raise cursor.sql.error(option.at, f"'{'.'.join(option.key)}' occurs twice; remove one")
        found.append(option)
        if not cursor.takes(TokenType.COMMA):
            break
    cursor.expect(TokenType.R_PAREN, ")")
    return tuple(found)


def _option(cursor: Cursor) -> Option:
    if cursor.kind() == TokenType.STRING:
        text, at = cursor.text("a key")
        key = tuple(text.split("."))
    else:
        first, at = cursor.name("a key")
        parts = [first]
        while cursor.takes(TokenType.DOT):
            parts.append(cursor.name("the rest of the key")[0])
        key = tuple(parts)
    cursor.expect(TokenType.EQ, "=")
    return Option(key, read_value(cursor), at)
