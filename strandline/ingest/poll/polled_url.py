"""One URL that is polled periodically, and the stream that receives its answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urlencode, urlsplit

import structlog

from strandline.core.errors import InvalidSettings
from strandline.core.record_headers import HEADER_MESSAGE_ID, HEADER_QUERY
from strandline.core.streams.entrances import PollSpec, SecretSpec
from strandline.ingest.append.outcome import NOT_CONFIRMED
from strandline.ingest.gateway.decompression import ContentCoding, decompress
from strandline.ingest.gateway.framing import Form, Framed, TooLarge, Unframable, frame
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.poll.addresses import NotAllowed
from strandline.ingest.poll.fetching import FetchFailed, HttpFetcher, HttpResponse
from strandline.ingest.poll.schedule import pause_s, phase_s, wait_s
from strandline.ingest.poll.validators import Validators, name_of

logger = structlog.get_logger()

_FORMS = {"body": Form.WHOLE, "json": Form.JSON, "lines": Form.LINES}
_ETAG_SHOWN_MAX = 200


@dataclass(frozen=True)
class PollingTools:
    """Objects that all URLs share."""

    fetcher: HttpFetcher
    validators: Validators
    secret: Callable[[str, str], str]
    """Return a secret by its name, for a request to this URL. Raises InvalidSettings."""
    at_once: asyncio.Semaphore
    count: Callable[[str, str], None]
    """Called with stream and outcome after each request."""
    clock_s: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random


class PolledUrl:
    """Polls until it is stopped. No answer is given up: `stop` waits for the running append."""

    def __init__(self, poll: PollSpec, appender: StreamAppender, tools: PollingTools) -> None:
        self.poll = poll
        self.appender = appender
        self.failures = 0
        """Consecutive failures."""
        self._tools = tools
        self._name = name_of(appender.spec.stream, poll)
        """Name under which its validators are stored."""
        self._every_s = poll.every / 1000
        self._phase_s = phase_s(poll.url, self._every_s)
        self._is_appending = False
        self._is_stopping = False
        self._reported = ""
        """Code of the last logged failure. Empty after a success."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop polling, and return when the received answers are confirmed or refused."""
        self._is_stopping = True
        if not self._is_appending:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        wait = wait_s(self._tools.clock_s(), self._every_s, self._phase_s)
        while not self._is_stopping:
            await asyncio.sleep(wait)
            retry_after_s = await self.poll_once()
            if self.failures:
                wait = pause_s(self.failures, self._every_s, self._tools.chance(), retry_after_s)
            else:
                wait = wait_s(self._tools.clock_s(), self._every_s, self._phase_s)

    async def poll_once(self) -> float | None:
        """Poll once. Return the seconds that the device requests as a pause, or None.

        1. Send the request, conditionally if the device supports it.
        2. If the answer is unchanged, empty, missing, or an error, count it. Log the first of several failures.
        3. Append the records of the answer, by the spool while Kafka is away, and wait for the confirmation.
        4. Only then store the answer's ETag, so that an answer that was not persisted is sent again.
        """
        retry_after_s = None
        try:
            async with self._tools.at_once:
                reply = await self._tools.fetcher.ask(self.poll.url, self._headers(), self.poll.timeout / 1000)
            retry_after_s = _retry_after_s(reply, self._tools.clock_s())
            outcome = await self._take(reply)
        except (FetchFailed, NotAllowed, TooLarge, InvalidSettings) as error:
            self._note_failure(error.code, str(error))
            return retry_after_s
        except NOT_CONFIRMED as error:  # the appender has counted it
            self._note_failure("not_persisted", str(error))
            return retry_after_s
        except Exception as error:  # the edge: one URL must not affect the others
            logger.error("polling failed", action="poll_error", stream=self.appender.spec.stream, exc_info=error)
            self._note_failure("internal", repr(error))
            return retry_after_s
        if self.failures:
            logger.info("a polled URL answers again", action="poll_recovered", **self._named())
        self.failures, self._reported = 0, ""
        self._tools.count(self.appender.spec.stream, outcome)
        return None

    async def _take(self, reply: HttpResponse) -> str:
        """Persist an answer, and return its outcome for the metrics. Raises FetchFailed if its status isn't a success,
        TooLarge, and NOT_CONFIRMED.
        """
        if reply.status == 304:
            return "not_modified"
        if not 200 <= reply.status < 300:
            hint = "; redirects are not followed: poll the URL that it leads to" if 300 <= reply.status < 400 else ""
            raise FetchFailed(f"status_{reply.status // 100}xx", f"it answered with status {reply.status}{hint}")
        body = _plain(reply, self._tools.fetcher.body_bytes_max)
        if not body.strip():
            self._tools.validators.note(self._name, reply.headers)
            return "empty"
        await self._append(body, reply)
        self._tools.validators.note(self._name, reply.headers)
        return "answered"

    async def _append(self, body: bytes, reply: HttpResponse) -> None:
        appender, fields = self.appender, self.poll.fields
        try:
            framed = self._framed(body)
        except TooLarge:
            appender.refuse(TooLarge.code)
            raise
        if framed.refused:
            appender.refuse(TooLarge.code, len(framed.refused))
        records = framed.records
        if appender.spec.key in fields:
            key = fields[appender.spec.key].encode()
            records = [(value, own or key) for value, own in records]
        self._is_appending = True
        try:
            await appender.append(
                records,
                source=self.source,
                headers=((HEADER_QUERY, b"?" + urlencode(fields).encode()),) if fields else (),
                headers_each=self._message_ids(reply, framed),
            )
        finally:
            self._is_appending = False

    def _framed(self, body: bytes) -> Framed:
        """Split an answer. Raises TooLarge.

        An answer that can't be split is one record: the device won't repeat it, and its bytes are kept.
        """
        spec, record_bytes_max = self.appender.spec, self.appender.record_bytes_max
        try:
            return frame(body, _FORMS[self.poll.framing], spec.key, record_bytes_max, spec.framing)
        except Unframable:
            return frame(body, Form.WHOLE, spec.key, record_bytes_max)

    def _message_ids(self, reply: HttpResponse, framed: Framed) -> list[tuple[tuple[str, bytes], ...]] | None:
        """Return message ids with the answer's ETag, so that a reader can recognize duplicates.

        None if it has no ETag.
        """
        etag = reply.headers.get("etag", "")[:_ETAG_SHOWN_MAX].encode("latin-1", "replace")
        if not etag:
            return None
        first = hashlib.sha256(self.poll.url.encode()).hexdigest()[:16].encode() + b" " + etag
        return [
            ((HEADER_MESSAGE_ID, b"%s/%d" % (first, index) if framed.is_batch else first),)
            for index in framed.indexes()
        ]

    @property
    def source(self) -> bytes:
        """The URL without its query, which may contain a secret."""
        parts = urlsplit(self.poll.url)
        return f"poll:{parts.scheme}://{parts.netloc}{parts.path}".encode()

    def _headers(self) -> list[tuple[str, str]]:
        """Return the headers of a request.

        Raises InvalidSettings if a secret is missing, or must not be sent to the URL.
        """
        own = {"Accept": "*/*", "User-Agent": "strandline"}
        given = {
            name: self._tools.secret(value.secret, self.poll.url) if isinstance(value, SecretSpec) else value
            for name, value in self.poll.headers.items()
        }
        names = {name.lower() for name in given}
        common = {name: value for name, value in own.items() if name.lower() not in names}
        encodings = [("Accept-Encoding", ", ".join(coding.value for coding in ContentCoding))]
        return [*common.items(), *given.items(), *encodings, *self._tools.validators.request_headers(self._name)]

    def _note_failure(self, code: str, message: str) -> None:
        self.failures += 1
        self._tools.count(self.appender.spec.stream, code)
        if self._reported != code:
            self._reported = code
            logger.warning("a polled URL returned no records", action="poll_failed", reason=message, **self._named())

    def _named(self) -> dict[str, str]:
        return {"stream": self.appender.spec.stream, "url": self.source.decode().removeprefix("poll:")}


def _plain(reply: HttpResponse, bytes_max: int) -> bytes:
    """Return the decompressed body. Raises FetchFailed and TooLarge."""
    name = reply.headers.get("content-encoding", "").lower().removeprefix("x-")
    if name in ("", "identity"):
        return reply.body
    try:
        return decompress(reply.body, ContentCoding(name), bytes_max)
    except ValueError as error:
        raise FetchFailed(
            "not_http", f"the answer has the content-encoding {name[:40]!r}, which was not requested"
        ) from error
    except Unframable as error:
        raise FetchFailed("not_http", str(error)) from error


def _retry_after_s(reply: HttpResponse, now_s: float) -> float | None:
    """Return the pause in seconds that the device requests, or None.

    A date is compared with the date of the answer, if it has one, because the clock of a device may be wrong.
    """
    text = reply.headers.get("retry-after", "")
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    until_s, sent_s = _seconds_of(text), _seconds_of(reply.headers.get("date", ""))
    return None if until_s is None else max(0.0, until_s - (now_s if sent_s is None else sent_s))


def _seconds_of(date: str) -> float | None:
    """Return an HTTP date as seconds since 1970. None if it isn't a date."""
    try:
        found = parsedate_to_datetime(date)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
