"""Tokens of a SQL text, a cursor over them, and their positions for errors.

The tokenizer is sqlglot's for Spark, whose expressions documents contain. Statements are read token by token. An expression
stays exactly as it was written, so that the document equals one that was written in YAML.
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
"""Maximum number of tokens in a file."""
BRACKETS_DEEP_MAX = 64
"""Maximum depth of brackets and `case ... end`, those of queries and of one expression together."""
_WORD = re.compile(r"[^\W\d]\w*")
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
_SPARK = sqlglot.Dialect.get_or_raise("spark")
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)


class SqlText:
    """A text and its tokens."""

    def __init__(self, text: str, source: str) -> None:
        """Raise InvalidDocument if the text is too long, too deep, or can't be tokenized."""
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
        # The tokenizer makes `5L` a number, `::`, and a type; each of the three spans the whole text.
        self.tokens: Sequence[Token] = [
            one for at, one in enumerate(tokens) if not at or one.start != tokens[at - 1].start
        ]
        if len(self.tokens) > TOKENS_MAX:
            raise self.error(
                self.tokens[TOKENS_MAX].start,
                f"is after {TOKENS_MAX:,} words, the maximum for one file; split it into several files",
            )
        self._refuse_deep_brackets()

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of a character, both from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def problem(self, offset: int, message: str, path: str = "") -> Problem:
        """Return a problem at this character."""
        line, column = self.place(offset)
        return Problem(message, path, self.source, line, column)

    def error(self, offset: int, message: str) -> InvalidDocument:
        """Return the error for the text at this character."""
        return InvalidDocument([self.problem(offset, message)])

    def raw(self, token: Token) -> str:
        """Return the token as it was written."""
        return self.text[token.start : token.end + 1]

    def written(self, tokens: Sequence[Token], instead: Mapping[int, str] | None = None) -> str:
        """Return the tokens as they were written, on one line and without comments. `instead`: index of a token -> its
        replacement, which can be empty."""
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
                    f"has more than {BRACKETS_DEEP_MAX} nested brackets; name the inner query with 'create "
                    "view', and derive the inner expression in a separate query",
                )

    def _untokenized(self) -> InvalidDocument:
        """Return the error for a text that the tokenizer refuses without a position: at the last quote or comment that isn't
        closed."""
        opened: int | None = None
        at = 0
        while at < len(self.text):
            rest = _SKIPPED.match(self.text, at)
            if rest is None:
                opened = at
                break
            at = rest.end()
        if opened is None:
            return InvalidDocument([Problem("can't be read as SQL", source=self.source)])
        what = "comment" if self.text[opened] == "/" else "quote"
        return self.error(opened, f"this {what} is never closed")


def _words(text: str, token: Token) -> list[Token]:
    """Return a token as single words. The tokenizer makes one token of `group by`."""
    raw = text[token.start : token.end + 1]
    if token.token_type in _QUOTED or not _WORDS.fullmatch(raw):
        return [token]
    return [
        Token(TokenType.VAR, word[0], start=token.start + word.start(), end=token.start + word.end() - 1)
        for word in _WORD.finditer(raw)
    ]


_QUALIFIER = re.compile(r"(?:`[^`]*`|\w+)\s*\.\s*$")
"""Name of a relation before a column."""
_WORDS = re.compile(r"[^\W\d]\w*(?:\s+[^\W\d]\w*)+")
_SKIPPED = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|/(?!\*)|-(?!-)|[^'\"`/-]+", re.DOTALL
)


class Cursor:
    """Reads the tokens of a text one after the other. Every method that expects a token raises InvalidDocument if the
    next one is another.
    """

    def __init__(self, sql: SqlText) -> None:
        self.sql = sql
        self.at = 0

    @property
    def here(self) -> int:
        """Offset at which the next token begins. At the end, the offset of the last character."""
        if self.at < len(self.sql.tokens):
            return self.sql.tokens[self.at].start
        return max(0, len(self.sql.text.rstrip()) - 1)

    def token(self, ahead: int = 0) -> Token | None:
        """Return the next token without reading it, or the token `ahead` positions later. None at the end."""
        place = self.at + ahead
        return self.sql.tokens[place] if place < len(self.sql.tokens) else None

    def kind(self, ahead: int = 0) -> TokenType | None:
        token = self.token(ahead)
        return None if token is None else token.token_type

    def word(self, ahead: int = 0) -> str:
        """Return the next token as a lower-case word. Empty if it isn't a word, or is in quotes."""
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
        """Skip these words if they are next. Return True if they were."""
        if any(self.word(number) != word for number, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def takes(self, kind: TokenType) -> bool:
        """Skip the next token if it is of this kind. Return True if it was."""
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
        """Read a name, and return it with its offset. A name that isn't a plain word must be in backticks or quotes."""
        token = self.token()
        if token is not None and token.token_type in _QUOTED:
            start = token.start
            return self._text(), start
        if token is not None and self.word():
            self.at += 1
            following = self.token()
            if following is not None and following.token_type == TokenType.DASH and following.start == token.end + 1:
                raise self.error(f"a name with '-' must be in backticks or quotes, as '{self.sql.raw(token)}-...'")
            return self.sql.raw(token), token.start
        raise self.expected(what)

    def text(self, what: str) -> tuple[str, int]:
        """Read a string in quotes, and return it with its offset."""
        token = self.token()
        if token is None or token.token_type != TokenType.STRING:
            raise self.expected(what)
        return self._text(), token.start

    def _text(self) -> str:
        """Read the string of the next quoted tokens. A doubled quote is one quote."""
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
        """Read tokens up to a comma, a closing bracket of an outer level, a ';', the end, or until `ends` returns True for
        those found. Brackets that open in the slice must close in it. Raises InvalidDocument if there is no token."""
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
        """Skip the statement that begins at token `start`, after an error in it: up to its ';', or up to the ';' after its
        `end`."""
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
            return self.error(f"expected {what}, but the text ends here")
        raw = self.sql.raw(token)
        return self.error(f"expected {what}, got {raw if len(raw) <= 40 else raw[:40] + '...'}")
