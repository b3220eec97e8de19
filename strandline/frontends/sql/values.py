"""Readers of values of options: strings, numbers, intervals, lists, and maps."""

from __future__ import annotations

import re

from sqlglot import TokenType

from strandline.core.times.durations import DURATION_MS_MAX, format_duration
from strandline.frontends.sql.tokens import Cursor

_UNITS_MS = {
    "millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000,
}  # fmt: skip
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,3})?")
_AMOUNT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,3})?)\s*([A-Za-z]+)?\s*")


def read_duration(cursor: Cursor) -> str:
    """Read `interval '1' minute`, `interval '1 minute'`, or `'1m'`. Return the form of documents."""
    at = cursor.here
    if not cursor.takes_words("interval"):
        if cursor.kind() == TokenType.STRING:
            return cursor.text("a duration")[0]  # the model checks it
        raise cursor.expected("a duration, as interval '1' minute")
    token = cursor.take()
    amount, unit = None, ""
    if token.token_type == TokenType.STRING and (found := _AMOUNT.fullmatch(token.text)):
        amount, unit = found[1], (found[2] or "").lower()
    elif token.token_type == TokenType.NUMBER and _NUMBER.fullmatch(token.text):
        amount = token.text
    if amount is not None and not unit:
        unit = cursor.word()
        if unit:
            cursor.take()
            if cursor.takes(TokenType.L_PAREN):  # the precision: second(3)
                cursor.expect(TokenType.NUMBER, "a number")
                cursor.expect(TokenType.R_PAREN, ")")
    unit_ms = _UNITS_MS.get(unit.removesuffix("s"))
    if amount is None or unit_ms is None or cursor.word() == "to":
        hint = (
            "; months and years have no fixed length" if unit.removesuffix("s") in ("month", "quarter", "year") else ""
        )
        units = ", ".join(_UNITS_MS)
        raise cursor.sql.error(at, f"is not a known interval; write interval '1' with one of {units}{hint}")
    whole, _, rest = amount.partition(".")
    thousandths = (int(whole) * 1_000 + int((rest + "000")[:3])) * unit_ms
    if thousandths % 1_000:
        raise cursor.sql.error(at, "is not an integer number of milliseconds")
    if thousandths // 1_000 > DURATION_MS_MAX:
        raise cursor.sql.error(at, "is longer than ten years; is the unit right?")
    return format_duration(thousandths // 1_000)


def read_value(cursor: Cursor) -> object:
    """Read the next value as plain data. Raises InvalidDocument if there is none."""
    word = cursor.word()
    if word in ("true", "false", "null"):
        cursor.take()
        return {"true": True, "false": False, "null": None}[word]
    if word == "interval":
        return read_duration(cursor)
    if word == "map" and cursor.kind(1) == TokenType.L_PAREN:
        return _map(cursor)
    if word == "array" or cursor.kind() in (TokenType.L_PAREN, TokenType.L_BRACKET):
        return _list(cursor)
    if cursor.kind() == TokenType.STRING:
        return cursor.text("a value")[0]
    sign = -1 if cursor.takes(TokenType.DASH) else 1
    if cursor.kind() == TokenType.NUMBER:
        token = cursor.take()
        text = token.text
        try:
            return sign * (int(text) if text.isdigit() and len(text) < 20 else float(text))
        except ValueError as error:
            raise cursor.sql.error(token.start, f"'{text}' is not a number that an option can have") from error
    raise cursor.expected("a string in quotes, a number, true, false, null, an interval, array[...], or map(...)")


def _list(cursor: Cursor) -> list[object]:
    cursor.takes_words("array")
    closing = TokenType.R_PAREN if cursor.kind() == TokenType.L_PAREN else TokenType.R_BRACKET
    if not (cursor.takes(TokenType.L_PAREN) or cursor.takes(TokenType.L_BRACKET)):
        raise cursor.expected("'['")
    values: list[object] = []
    while cursor.kind() != closing:
        values.append(read_value(cursor))
        if not cursor.takes(TokenType.COMMA):
            break
    cursor.expect(closing, ")" if closing == TokenType.R_PAREN else "]")
    return values


def _map(cursor: Cursor) -> dict[str, object]:
    """Read a map: `map('url', 'http://10.0.0.5/status', 'every', '10s')`."""
    cursor.take(), cursor.take()
    values: dict[str, object] = {}
    while cursor.kind() != TokenType.R_PAREN:
        key, at = cursor.text("a key in quotes")
        if key in values:
            raise cursor.sql.error(at, f"'{key}' occurs twice; remove one")
        cursor.expect(TokenType.COMMA, ",")
        values[key] = read_value(cursor)
        if not cursor.takes(TokenType.COMMA):
            break
    cursor.expect(TokenType.R_PAREN, ")")
    return values
