"""`strandline.Client`: a platform from a Python program. It has the functions of the command line, with values instead of
tables.

Every method raises an error of `strandline.core.errors`, whose class determines the reaction: TransientError can succeed on a
retry, PermanentError can't. Safe requests are repeated automatically: reads, and requests that lead to the same state when they
are repeated. `restart` is sent once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import httpx

from strandline.core.documents import YamlDocument
from strandline.core.errors import InvalidDocument, InvalidSettings, Problem, TransientError
from strandline.frontends.client.answers import (
    Applied,
    DeadLetter,
    Explanation,
    Job,
    Plan,
    RegisteredStream,
    Requeued,
    Sent,
    StreamStatus,
)
from strandline.frontends.client.sending import Sender
from strandline.frontends.document_text import write_documents
from strandline.frontends.joined_texts import JoinedTexts, LocateProblem
from strandline.frontends.python.pipeline import Documents, Record
from strandline.ledger.states import COMPLETED
from strandline.services.client import ControlClient, authorization, job_path
from strandline.services.trust import ClientTls, certificates_for

_ATTEMPTS = 4
_WAIT_S = 0.2
_SOURCE = "<program>"
_Found = TypeVar("_Found")


class Wanted(TypedDict, total=False):
    """Filter of dead letters. All conditions must match."""

    reason: str
    step: str
    since_ms: int
    until_ms: int


class Client:
    """Client of one platform. Use it as a context manager, or call `close`. NotFound: no object has this name.
    Conflict: the state of the object doesn't allow the request.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        ingest_url: str | None = None,
        timeout_s: float = 60.0,
        trust: ClientTls | None = None,
    ) -> None:
        """Args: url: URL of the control service. ingest_url: URL of an HTTP gateway, for `send`. token: Token, if the
        platform requires one. `timeout_s`: Timeout of one request. `apply` waits up to ten minutes, whatever this is.
        `trust`: Certificates for `https`.
        """
        self._control = ControlClient(url, timeout_s=timeout_s, token=token, trust=trust)
        self._gateway: httpx.Client | None = None
        if ingest_url is not None:
            self._gateway = httpx.Client(
                base_url=ingest_url.rstrip("/"),
                timeout=timeout_s,
                trust_env=False,
                headers=authorization(token),
                verify=certificates_for(ingest_url, trust),
            )
        self._timeout_s = timeout_s

    @classmethod
    def of_stack(cls, data_dir: str | Path) -> Self:
        """Return a client of the embedded stack that was last started in this directory, with its token. Raises StackError if
        no stack was started there."""
        from strandline.services.embedded.addresses import read_stack
        from strandline.services.embedded.admin_token import read_admin_token

        addresses = read_stack(Path(data_dir))
        token = read_admin_token(Path(addresses.data_dir))
        return cls(addresses.api_url, token=token, ingest_url=addresses.ingest_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._control.__exit__(None, None, None)
        if self._gateway is not None:
            self._gateway.close()

    # Documents

    def apply(self, *documents: Documents | Path | str) -> list[Applied]:
        """Register streams and submit pipelines, all or none. A new job starts, and a changed job gets its new version.

        A document is a pipeline or a stream of Python, the path of a YAML or SQL file (.sql), or YAML as a string. Applying
        unchanged documents changes nothing. Raises InvalidDocument with every problem, each with its file and line, and
        Conflict for a change that would lose data.
        """
        return [Applied.of(one) for one in self._send(self._control.apply, documents)]

    def plan(self, *documents: Documents | Path | str) -> Plan:
        """Return the effect of `apply` without changing anything. `apply` refuses changes that are `forbidden`."""
        return Plan.of(self._send(self._control.plan, documents))

    # Jobs

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        return [Job.of(one) for one in self._safely(lambda: self._control.get("/v1/jobs"))["jobs"]]

    def job(self, name: str) -> Job:
        """Return the current state of a job. Raises NotFound."""
        return Job.of(self._safely(lambda: self._control.job(name)))

    def start(self, name: str, *, wait_s: float | None = 60.0) -> Job:
        """Start a job, and wait until it runs, at most `wait_s`; None doesn't wait. Raises Conflict; TransientError on a
        timeout."""
        self._safely(lambda: self._control.order(name, "start"))
        return (
            self.job(name) if wait_s is None else self.wait(name, lambda job: job.state == "running", "running", wait_s)
        )

    def stop(self, name: str, *, drain: bool = False, wait_s: float | None = 60.0) -> Job:
        """Stop a job after its current slice, and wait until it has stopped, at most `wait_s`; None doesn't wait. `drain`:
        Close all its windows first."""
        self._safely(lambda: self._control.order(name, "drain" if drain else "stop"))
        states = ("drained", COMPLETED) if drain else ("stopped", "drained", COMPLETED)
        return self.job(name) if wait_s is None else self.wait(name, lambda job: job.state in states, states[0], wait_s)

    def wait_completed(self, name: str, timeout_s: float = 3_600.0) -> Job:
        """Wait until a batch has read its range and closed all its windows. Raises PermanentError if it fails or is stopped;
        TransientError on a timeout."""
        return Job.of(self._control.wait_for_batch(name, lambda job: None, timeout_s))

    def restart(self, name: str, *, wait_s: float | None = 60.0) -> Job:
        """End a job's run after its current slice, start a new run, and wait until it runs, at most `wait_s`. The request is
        sent once."""
        before = int(self._control.order(name, "restart")["epoch"])
        if wait_s is None:
            return self.job(name)
        return self.wait(name, lambda job: job.epoch > before and job.state == "running", "running again", wait_s)

    def wait(self, name: str, is_so: Callable[[Job], bool], what: str, timeout_s: float = 60.0) -> Job:
        """Wait until `is_so` returns True for the job. `what` describes this state in errors. Raises PermanentError if the job
        fails; TransientError on a timeout."""
        return Job.of(self._control.wait_for_job(name, lambda job: is_so(Job.of(job)), what, timeout_s))

    def explain(self, name: str) -> Explanation:
        """Return the reason why a job has no output, or what it waits for. Raises NotFound."""
        return Explanation.of(self._safely(lambda: self._control.get(f"{job_path(name)}/explanation")))

    def delete_job(self, name: str, *, results: bool = False, dead_letters: bool = False) -> None:
        """Delete a stopped job, and its results and dead letters only on request. Raises NotFound, Conflict."""
        self._control.delete_job(name, results=results, dead_letters=dead_letters)

    # Streams

    def streams(self) -> list[RegisteredStream]:
        """Return all registered streams."""
        return [RegisteredStream.of(one) for one in self._safely(lambda: self._control.get("/v1/streams"))["streams"]]

    def stream(self, name: str) -> StreamStatus:
        """Return a stream, and its content in the log. Raises NotFound."""
        return StreamStatus.of(self._safely(lambda: self._control.stream(name)))

    def delete_stream(self, name: str, *, keep_topic: bool = False) -> None:
        """Delete a stream that no job needs. Raises NotFound, Conflict."""
        self._control.delete_stream(name, keep_topic=keep_topic)

    def send(self, stream: str, records: Record | Iterable[Record], *, key: str | None = None) -> Sent:
        """Send records to the HTTP gateway, in requests of up to 10,000. All records are in the log when this returns, except
        `refused` ones.

        A record is an object, which becomes JSON, a string, or bytes. Records in `refused` are too large. Requests that are
        refused because the gateway is busy or Kafka is unavailable are repeated, for up to `timeout_s`. Raises SendFailed, and
        errors of the gateway, such as NotFound, with a note of the number of records in the log.

        Args: key: Stored with each record as its message id (`KEY-0/0`, `KEY-0/1`, ...), so that readers can detect duplicates.
        With a key, a request with an unknown outcome is repeated. Without a key, it raises SendFailed, whose `accepted` and
        `unknown` report the progress.
        """
        if self._gateway is None:
            raise InvalidSettings("the client has no gateway; create it with ingest_url='http://HOST:8081'")
        one_or_more: Iterable[Record] = [records] if isinstance(records, str | bytes | Mapping) else records
        return Sender(self._gateway, self._timeout_s).send(stream, one_or_more, key)

    # Dead letters

    def dead_letters(self, job: str, *, after: int = -1, **wanted: Unpack[Wanted]) -> Iterator[DeadLetter]:
        """Yield the dead letters of a job with a number above `after`, the oldest first. Pages are requested on demand. Raises
        NotFound.

        Args: wanted: `reason`, `step`, `since_ms`, `until_ms`.
        """
        parameters: dict[str, Any] = dict(wanted)
        page = self._safely(lambda: self._control.dead_letters(job, after, **parameters))
        while True:
            yield from (DeadLetter.of(one) for one in page["dead_letters"])
            following = page["next"]
            if following is None:
                return
            page = self._safely(lambda path=following: self._control.get(path))  # type: ignore[misc]

    def requeue_dead_letters(self, job: str, *, dry_run: bool = False, **wanted: Unpack[Wanted]) -> Requeued:
        """Requeue dead letters: write their records to their stream again, each at most once, even if the call is
        repeated. Raises NotFound, Conflict.

        Args: wanted: `reason`, `step`, `since_ms`, `until_ms`.
        """
        parameters: dict[str, Any] = {**wanted, "dry_run": str(dry_run).lower()}
        piece = self._safely(lambda: self._control.requeue_dead_letters(job, **parameters))
        pieces = [piece]
        while (following := piece["next"]) is not None:
            piece = self._safely(lambda path=following: self._control.post(path))  # type: ignore[misc]
            pieces.append(piece)
        return Requeued(
            sum(one["matched"] for one in pieces),
            sum(one["requeued"] for one in pieces),
            sum(one["requeued_before"] for one in pieces),
            _summed(one["skipped"] for one in pieces),
            _summed(one["outcomes"] for one in pieces),
        )

    def _safely(self, ask: Callable[[], _Found]) -> _Found:
        """Send a request, and repeat it after transient errors. Only for requests that are safe to repeat."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return ask()
            except TransientError:
                time.sleep(_WAIT_S * 2**attempt * random.uniform(0.5, 1))  # noqa: S311
        return ask()

    def _send(self, ask: Callable[[bytes, str], _Found], documents: Iterable[Documents | Path | str]) -> _Found:
        """Return the response to a request with documents. Problems get the file and line of their author."""
        joined = _joined(documents)
        try:
            return self._safely(lambda: ask(joined.text, _SOURCE))
        except InvalidDocument as error:
            raise InvalidDocument([joined.located(problem) for problem in error.problems]) from error


def _joined(documents: Iterable[Documents | Path | str]) -> JoinedTexts:
    """Join documents. A stream of several pipelines is included once."""
    joined = JoinedTexts()
    known: list[YamlDocument] = []
    for one in documents:
        if isinstance(one, Path):
            joined.add_file(one)
        elif isinstance(one, str):
            joined.add(one.encode(), lambda problem: problem)
        else:
            for document in one.yaml_documents():
                if document not in known:
                    known.append(document)
                    joined.add(write_documents([document.data]).encode(), _locator(document))
    return joined


def _locator(document: YamlDocument) -> LocateProblem:
    def locate(problem: Problem) -> Problem:
        return Problem(problem.message, problem.path, document.source, document.line_of_text(problem.path))

    return locate


def _summed(counts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + int(count)
    return total
