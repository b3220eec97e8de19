"""Sends records to a stream over HTTP, in requests of bounded size. Repeats a request only if readers can detect duplicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from strandline.core.errors import PermanentError, TransientError
from strandline.frontends.client.answers import Data, Sent
from strandline.frontends.python.pipeline import Record, record_bytes
from strandline.services.client import error_of

REQUEST_BYTES_MAX = 1 << 20
REQUEST_RECORDS_MAX = 10_000
RETRY_AFTER_S_MAX = 30.0
_LINES = "application/x-ndjson"
_BYTES = "application/octet-stream"
_TOO_LARGE = "too_large"
_NOTHING_IN_THE_LOG = ("log_away", "spool_full", "ledger_unavailable", "tokens_unavailable", "too_many_requests")
"""Codes of 503 and 429 that mean that no record of the request is in the log."""


class SendFailed(TransientError):
    """Not all records are in the log. The first `accepted` records are, except those in `refused`, which are too large. Some of
    the next `unknown` records may be in the log. The remaining records aren't."""

    code = "send_failed"

    def __init__(self, message: str, accepted: int, unknown: int, refused: Sequence[Data] = ()) -> None:
        super().__init__(message)
        self.accepted = accepted
        self.unknown = unknown
        self.refused = list(refused)


class Sender:
    """Sender to one gateway."""

    def __init__(self, http: httpx.Client, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Args: timeout_s: Time for which one request can be repeated."""
        self._http = http
        self._timeout_s = timeout_s
        self._sleep = sleep

    def send(self, stream: str, records: Iterable[Record], key: str | None) -> Sent:
        """Send the records in their order. Raises SendFailed, or the error of the gateway, with a note of the number of records
        in the log."""
        accepted, sent, refused = 0, 0, list[Data]()
        for number, (body, count, content_type) in enumerate(_requests(records)):
            headers = {"Content-Type": content_type} | ({} if key is None else {"Idempotency-Key": f"{key}-{number}"})
            try:
                answer = self._confirmed(f"/v1/streams/{quote(stream, safe='')}/records", body, headers, count)
            except _Unconfirmed as error:
                raise SendFailed(
                    f"{sent} records are confirmed; of the next {count}, {error.state}: {error.reason}",
                    sent,
                    count if error.is_unknown else 0,
                    refused,
                ) from error.__cause__
            except PermanentError as error:
                if accepted:
                    error.add_note(f"the {accepted} records before are in the log")
                raise
            accepted += int(answer["accepted"])
            refused += [{**one, "index": one["index"] + sent} for one in answer.get("refused", ())]
            sent += count
        return Sent(accepted, refused)

    def _confirmed(self, path: str, body: bytes, headers: dict[str, str], count: int) -> dict[str, Any]:
        """Send one request of `count` records until it is confirmed. It is repeated if none of its records is in the log. With
        a key, with which readers detect duplicates, it is also repeated if some records may be in the log."""
        deadline = time.monotonic() + self._timeout_s
        has_key = "Idempotency-Key" in headers
        may_be_there = False
        wait_s = 0.1
        while True:
            try:
                response = self._http.post(path, content=body, headers=headers)
            except httpx.ConnectError as error:
                failed: Exception = error
                reason, asked_s = f"the gateway does not respond ({error})", None
            except httpx.HTTPError as error:
                failed, may_be_there = error, True
                reason, asked_s = f"the gateway did not confirm ({error or type(error).__name__})", None
            else:
                if response.is_success:
                    found: dict[str, Any] = response.json()
                    return found
                problem = _problem(response)
                failed = error_of(response.status_code, problem)
                if (
                    count == 1 and response.status_code == 413 and failed.code == _TOO_LARGE
                ):  # as it answers for one of many
                    return {"accepted": 0, "refused": [{"index": 0, "reason": _TOO_LARGE, "detail": str(failed)}]}
                if not isinstance(failed, TransientError) and response.status_code < 500:
                    raise failed
                may_be_there |= problem.get("code") not in _NOTHING_IN_THE_LOG and response.status_code != 429
                reason, asked_s = str(failed), _seconds(response.headers.get("Retry-After"))
            wait_s = min(asked_s if asked_s is not None else wait_s * 2, RETRY_AFTER_S_MAX)
            if (may_be_there and not has_key) or time.monotonic() + wait_s > deadline:
                raise _Unconfirmed(reason, may_be_there) from failed
            self._sleep(wait_s)


class _Unconfirmed(Exception):
    def __init__(self, reason: str, is_unknown: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_unknown = is_unknown
        self.state = "some may be in the log" if is_unknown else "none is in the log"


def _requests(records: Iterable[Record]) -> Iterator[tuple[bytes, int, str]]:
    """Yield bodies with their number of records and content type: objects and strings as lines, bytes one by one."""
    lines: list[bytes] = []
    size = 0
    for record in records:
        value = record_bytes(record)
        is_line = not isinstance(record, bytes) and b"\n" not in value
        if lines and (not is_line or size + len(value) >= REQUEST_BYTES_MAX or len(lines) >= REQUEST_RECORDS_MAX):
            yield b"\n".join(lines), len(lines), _LINES
            lines, size = [], 0
        if not is_line:
            yield value, 1, _BYTES
        elif value.strip():
            lines.append(value)
            size += len(value) + 1
        else:
            raise ValueError("a record must not be empty; leave it out")
    if lines:
        yield b"\n".join(lines), len(lines), _LINES


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {"detail": f"the gateway responded with {response.status_code}"}
    return found if isinstance(found, dict) else {}


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdigit() else None
