"""The tokens of a SQL text, a cursor over them, and the places that errors name.

The tokenizer is sqlglot's for Spark, whose expressions the documents hold. Statements are read token by token: an expression
stays as it was written, letter by letter, so that the document says the same as if it had been written in YAML.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import sqlglot
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from strandline.core.documents import DOCUMENT_BYTES_MAX
from strandline.core.errors import InvalidDocument, Problem

TOKENS_MAX = 60_000
"""Of one file."""
BRACKETS_DEEP_MAX = 64
"""Brackets, and `case ... end`, within each other: those of queries and of one expression together."""
_WORD = re.compile(r"[^\W\d]\w*")
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
_SPARK = sqlglot.Dialect.get_or_raise("spark")
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)


class SqlText:
    """A text and its tokens."""

    def __init__(self, text: str, source: str) -> None:
        """Raises InvalidDocument for a text that is too long, too deep, or can't be cut into tokens."""
        self.text = text
        self.source = source
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
        if len(text.encode("utf-8", "replace")) > DOCUMENT_BYTES_MAX:
            raise InvalidDocument(
                [Problem(f"is larger than {DOCUMENT_BYTES_MAX:,} bytes; split it into several files", source=source)]
            )
        try:
            tokens = [part for token in _SPARK.tokenize(text) for part in _words(text, token)]
        except SqlglotError as error:
            raise self._untokenized() from error
        # The tokenizer makes `5L` a number, `::` and a type, all three of the whole text.
        self.tokens: Sequence[Token] = [
            one for at, one in enumerate(tokens) if not at or one.start != tokens[at - 1].start
        ]
        if len(self.tokens) > TOKENS_MAX:
            raise self.error(
                self.tokens[TOKENS_MAX].start,
                f"is the end of {TOKENS_MAX:,} words, which is all that one file may hold; split it into several files",
            )
        self._refuse_deep_brackets()

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def problem(self, offset: int, message: str, path: str = "") -> Problem:
        """A problem at this character."""
        line, column = self.place(offset)
        return Problem(message, path, self.source, line, column)

    def error(self, offset: int, message: str) -> InvalidDocument:
        """The refusal of the text for what stands at this character."""
        return InvalidDocument([self.problem(offset, message)])

    def raw(self, token: Token) -> str:
        """The token as it was written."""
        return self.text[token.start : token.end + 1]

    def written(self, tokens: Sequence[Token], instead: Mapping[int, str] | None = None) -> str:
        """These tokens as they were written, on one line and without comments. `instead`: number of a token -> what stands in
        its place; empty where nothing does."""
        parts: list[str] = []
        for number, token in enumerate(tokens):
            shown = (instead or {}).get(number, self.raw(token))
            if number and shown:
                gap = _QUALIFIER.sub("", self.text[tokens[number - 1].end + 1 : token.start])
                parts.append(" " if gap.strip() or "\n" in gap else gap)
            parts.append(shown)
        return "".join(parts)

    def _refuse_deep_brackets(self) -> None:
        depth = 0
        for token in self.tokens:
            if token.token_type in _OPENING:
                depth += 1
            elif token.token_type in _CLOSING or token.token_type == TokenType.END:
                depth = max(0, depth - 1)
            if depth > BRACKETS_DEEP_MAX:
                raise self.error(
                    token.start,
                    f"has more than {BRACKETS_DEEP_MAX} brackets within each other; give the inner query a name by 'create "
                    "view', and the inner expression one in a query of its own",
                )

    def _untokenized(self) -> InvalidDocument:
        """The tokenizer names no place: it is where the last quote or comment begins that nothing ends."""
        opened: int | None = None
        at = 0
        while at < len(self.text):
            rest = _SKIPPED.match(self.text, at)
            if rest is None:
                opened = at
                break
            at = rest.end()
        if opened is None:
            return InvalidDocument([Problem("is not SQL that can be read", source=self.source)])
        what = "comment" if self.text[opened] == "/" else "quote"
        return self.error(opened, f"this {what} is never closed")


def _words(text: str, token: Token) -> list[Token]:
    """A token as single words: the tokenizer makes one of `group by`."""
    raw = text[token.start : token.end + 1]
    if token.token_type in _QUOTED or not _WORDS.fullmatch(raw):
        return [token]
    return [
        Token(TokenType.VAR, word[0], start=token.start + word.start(), end=token.start + word.end() - 1)
        for word in _WORD.finditer(raw)
    ]


_QUALIFIER = re.compile(r"(?:`[^`]*`|\w+)\s*\.\s*$")
"""The name of a relation before a column."""
_WORDS = re.compile(r"[^\W\d]\w*(?:\s+[^\W\d]\w*)+")
_SKIPPED = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|/(?!\*)|-(?!-)|[^'\"`/-]+", re.DOTALL
)


class Cursor:
    """Reads the tokens of a text one after the other. Every method that expects something raises InvalidDocument."""

    def __init__(self, sql: SqlText) -> None:
        self.sql = sql
        self.at = 0

    @property
    def here(self) -> int:
        """The character where the next token begins; the last one at the end."""
        if self.at < len(self.sql.tokens):
            return self.sql.tokens[self.at].start
        return max(0, len(self.sql.text.rstrip()) - 1)

    def token(self, ahead: int = 0) -> Token | None:
        """The next token, or one that many tokens ahead; None at the end."""
        place = self.at + ahead
        return self.sql.tokens[place] if place < len(self.sql.tokens) else None

    def kind(self, ahead: int = 0) -> TokenType | None:
        token = self.token(ahead)
        return None if token is None else token.token_type

    def word(self, ahead: int = 0) -> str:
        """The next token as a lower-case word; empty where it is none, or stands in quotes."""
        token = self.token(ahead)
        if token is None or token.token_type in _QUOTED:
            return ""
        raw = self.sql.raw(token)
        return raw.lower() if _WORD.fullmatch(raw) else ""

    def take(self) -> Token:
        token = self.token()
        if token is None:
            raise self.error("the text ends here, in the middle of a statement")
        self.at += 1
        return token

    def takes_words(self, *words: str) -> bool:
        """Go on behind these words, if they are next."""
        if any(self.word(number) != word for number, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def takes(self, kind: TokenType) -> bool:
        """Go on behind the next token, if it is of this kind."""
        if self.kind() != kind:
            return False
        self.at += 1
        return True

    def expect_words(self, *words: str) -> None:
        if not self.takes_words(*words):
            raise self.expected(f"'{' '.join(words)}'")

    def expect(self, kind: TokenType, shown: str) -> Token:
        token = self.token()
        if token is None or token.token_type != kind:
            raise self.expected(f"'{shown}'")
        return self.take()

    def name(self, what: str) -> tuple[str, int]:
        """A name, and where it stands. One that is no plain word stands in backticks or quotes."""
        token = self.token()
        if token is not None and token.token_type in _QUOTED:
            start = token.start
            return self._text(), start
        if token is not None and self.word():
            self.at += 1
            following = self.token()
            if following is not None and following.token_type == TokenType.DASH and following.start == token.end + 1:
                raise self.error(f"a name with '-' stands in backticks or quotes, as '{self.sql.raw(token)}-...'")
            return self.sql.raw(token), token.start
        raise self.expected(what)

    def text(self, what: str) -> tuple[str, int]:
        """A text in quotes, and where it stands."""
        token = self.token()
        if token is None or token.token_type != TokenType.STRING:
            raise self.expected(what)
        return self._text(), token.start

    def _text(self) -> str:
        """The text of the quoted tokens that are next: a doubled quote is one quote."""
        first = self.take()
        text, last = first.text, first
        while (token := self.token()) is not None:
            if (
                token.token_type != TokenType.STRING
                or token.start != last.end + 1
                or first.token_type != TokenType.STRING
            ):
                break
            text += self.sql.raw(token)[0] + token.text
            last = self.take()
        return text

    def slice_until(self, ends: Callable[[Cursor, Sequence[Token]], bool], what: str) -> list[Token]:
        """The tokens up to a comma, a bracket that was opened before, a ';', the end, or where `ends`, which is asked with those
        that were found, says so. Brackets that are opened within are closed within. Raises InvalidDocument for none."""
        found: list[Token] = []
        depth = cases = 0
        while (token := self.token()) is not None:
            kind = token.token_type
            if kind == TokenType.SEMICOLON:
                break
            if depth == 0 and cases == 0 and (kind == TokenType.COMMA or kind in _CLOSING or ends(self, found)):
                break
            if kind == TokenType.END and not cases:
                break
            cases += (kind == TokenType.CASE) - (kind == TokenType.END)
            depth += (kind in _OPENING and kind != TokenType.CASE) - (kind in _CLOSING)
            if depth < 0:
                break
            found.append(self.take())
        if not found:
            raise self.expected(what)
        return found

    def skip_statement(self, start: int) -> None:
        """Go on behind the end of the statement that begins at token `start`, after a mistake in it: its ';', or behind a `begin`
        that of its `end`."""
        self.at, is_block, cases = start, False, 0
        while (token := self.token()) is not None:
            self.at += 1
            if token.token_type == TokenType.CASE:
                cases += 1
            elif token.token_type == TokenType.END and cases:
                cases -= 1
            elif token.token_type == TokenType.BEGIN:
                is_block = True
            elif token.token_type == TokenType.END:
                is_block = False
            elif token.token_type == TokenType.SEMICOLON and not is_block:
                return

    def error(self, message: str) -> InvalidDocument:
        return self.sql.error(self.here, message)

    def expected(self, what: str) -> InvalidDocument:
        token = self.token()
        if token is None:
            return self.error(f"expected {what}, and the text ends here")
        raw = self.sql.raw(token)
        return self.error(f"expected {what}, got {raw if len(raw) <= 40 else raw[:40] + '...'}")
