"""Client of the REST API, for the command line and for Python programs. Raises Strandline's own errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from strandline.core.errors import (
    Conflict,
    Forbidden,
    InvalidDocument,
    NotFound,
    PermanentError,
    Problem,
    StrandlineError,
    TransientError,
    Unauthenticated,
)
from strandline.ledger.states import COMPLETED, Desired, JobState
from strandline.services.trust import ClientTls, certificates_for

JsonObject = dict[str, Any]
POLL_S = 0.2
APPLY_S_MAX = 600.0
"""Maximum time in seconds that a client waits while documents are applied. Each lookup that follows a source can take 40 s."""
NO_ANSWER_MAX_S = 60.0
"""Maximum time in seconds for which a wait continues without a response. A crashed control service is restarted within seconds.
"""
TOKEN_VARIABLE = "STRANDLINE_TOKEN"  # noqa: S105  # a variable's name
"""Variable that contains the token of a client program."""
_CLASS_OF_STATUS: dict[int, type[StrandlineError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: TransientError,
    503: TransientError,
}


class ControlUnavailable(TransientError):
    """The control service did not respond."""

    code = "control_unavailable"


class ControlClient:
    """Client of one control service. Every method raises ControlUnavailable, or the error of the response. NotFound: no
    object has this name. Conflict: the state of the object doesn't allow the request.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 60.0, token: str | None = None, trust: ClientTls | None = None
    ) -> None:
        """Raise InvalidSettings if `trust` can't be used.

        Args: timeout_s: Timeout of one request. `apply` waits at least APPLY_S_MAX, whatever this is. trust: TLS files
        for an `https` service.
        """
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        # A proxy of the environment must not be between a command line and its own machine.
        self._http = httpx.Client(
            base_url=self._url,
            timeout=timeout_s,
            trust_env=False,
            headers=authorization(token),
            verify=certificates_for(url, trust),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int) -> JsonObject:
        """Return the response to a GET. `path`: also the `next` of an earlier response."""
        return self._ask("GET", path, params=query or None)  # an empty dict would remove the query of the path

    def post(self, path: str, body: JsonObject | None = None) -> JsonObject:
        """Return the response to a POST of a JSON object, or of no body. `path`: also the `next` of an earlier response."""
        return self._ask("POST", path, **({} if body is None else {"json": body}))

    def apply(self, text: bytes, source: str) -> list[JsonObject]:
        """Apply documents, and return the outcome of each. `source`: name of the file, for problems."""
        read_s = max(self._timeout_s, APPLY_S_MAX)
        try:
            timeout = httpx.Timeout(self._timeout_s, read=read_s)
            answer = self._post_yaml("/v1/documents", text, source, timeout=timeout)
        except ControlUnavailable as error:
            if not isinstance(error.__cause__, httpx.ReadTimeout):
                raise
            raise ControlUnavailable(
                f"the control service at {self._url} has not responded within {read_s:g} s, and may still be "
                "applying the documents; apply them again to complete the remaining work"
            ) from error
        applied: list[JsonObject] = answer["applied"]
        return applied

    def plan(self, text: bytes, source: str) -> JsonObject:
        """Return the effect of applying documents on streams and lookups (`documents`) and on `jobs`. Changes nothing."""
        return self._post_yaml("/v1/documents/plan", text, source)

    def check(self, text: bytes, source: str) -> JsonObject:
        """Check a pipeline, and return its stages or its problems. `source`: see `apply`. Changes nothing."""
        return self._post_yaml("/v1/pipelines/check", text, source)

    def preview(self, text: bytes, source: str, **query: str | float) -> JsonObject:
        """Return the results of a pipeline for the newest records of a stream. Writes nothing."""
        return self._post_yaml("/v1/pipelines/preview", text, source, query)

    def stream(self, name: str) -> JsonObject:
        """Return a stream, and its content in the log. Raises NotFound."""
        return self.get(f"/v1/streams/{quote(name, safe='')}")

    def lookup(self, name: str) -> JsonObject:
        """Return a lookup, its versions, and the jobs that need it. Raises NotFound."""
        return self.get(f"/v1/lookups/{quote(name, safe='')}")

    def delete_lookup(self, name: str) -> JsonObject:
        """Delete a lookup that no job needs. Raises NotFound, Conflict."""
        return self._ask("DELETE", f"/v1/lookups/{quote(name, safe='')}")

    def notice(self, name: str) -> JsonObject:
        """Return a notice, its problems, and its messages. Raises NotFound."""
        return self.get(_notice_path(name))

    def test_notice(self, name: str) -> JsonObject:
        """Send a test message to each channel of a notice; returns immediately. Raises NotFound."""
        return self._ask("POST", f"{_notice_path(name)}/test")

    def mute_notice(self, name: str, until_ms: int | None) -> JsonObject:
        """Hold back the messages of a notice until a time. None ends muting. Raises NotFound."""
        parameters = {} if until_ms is None else {"until_ms": until_ms}
        return self._ask("POST", f"{_notice_path(name)}/mute", params=parameters)

    def delete_notice(self, name: str) -> JsonObject:
        """Delete a notice. Raises NotFound."""
        return self._ask("DELETE", _notice_path(name))

    def undeclared(self, name: str) -> JsonObject:
        """Return the fields of the stream's newest records that its schema doesn't declare. Raises NotFound."""
        return self.get(f"/v1/streams/{quote(name, safe='')}/undeclared")

    def proposal(self, topic: str) -> JsonObject:
        """Return a stream document proposed from the newest records of a topic. Raises NotFound."""
        return self.get(f"/v1/topics/{quote(topic, safe='')}/proposal")

    def dead_letters(self, job: str, after: int = -1, limit: int = 100, **wanted: str | int) -> JsonObject:
        """Return dead letters of the job with a number above `after`. `wanted`: filters (reason, step, since_ms,
        until_ms). Raises NotFound.
        """
        return self.get(f"{job_path(job)}/dead-letters", after=after, limit=limit, **wanted)

    def count_dead_letters(self, job: str, **wanted: str | int) -> JsonObject:
        """Return the first part of the counts of dead letters, by reason and step. `next` is the path of the next part. Raises
        NotFound."""
        return self.get(f"{job_path(job)}/dead-letters/counts", **wanted)

    def requeue_dead_letters(self, job: str, **wanted: str | int) -> JsonObject:
        """Requeue the first part of the requested dead letters. `next` is the path for the next part. Raises NotFound,
        Conflict."""
        return self._ask("POST", f"{job_path(job)}/dead-letters/requeue", params=wanted)

    def repair_dead_letter(self, job: str, letter: str, payload: bytes, **how: str | int) -> JsonObject:
        """Requeue the record of one dead letter with another payload. `how`: `force`, `dry_run`. Raises NotFound, Conflict."""
        headers = {"Content-Type": "application/octet-stream"}
        path = f"{job_path(job)}/dead-letters/repair"
        return self._ask("POST", path, content=payload, params={"dead_letter": letter, **how}, headers=headers)

    def repair_dead_letters(self, job: str, edits: list[JsonObject], **wanted: str | int) -> JsonObject:
        """Edit and requeue the first part of the requested dead letters. `next` is the path for the next part, see
        `repair_next`. Raises NotFound, Conflict, InvalidDocument."""
        path = f"{job_path(job)}/dead-letters/repairs"
        return self._ask("POST", path, json={"edits": edits}, params=wanted)

    def repair_next(self, path: str, edits: list[JsonObject]) -> JsonObject:
        """Repair the next part of the dead letters: `path` is `next` of an earlier response."""
        return self._ask("POST", path, json={"edits": edits})

    def dead_letter(self, job: str, number: int) -> JsonObject:
        """Return one dead letter with all bytes. Raises NotFound."""
        return self.get(f"{job_path(job)}/dead-letters/{number}")

    def job(self, name: str) -> JsonObject:
        """Return the current state of a job. Raises NotFound."""
        return self._ask("GET", job_path(name))

    def versions(self, name: str) -> list[JsonObject]:
        """Return the versions of a job, the newest first. Raises NotFound."""
        versions: list[JsonObject] = self.get(f"{job_path(name)}/versions")["versions"]
        return versions

    def document(self, name: str, version: int) -> str:
        """Return the document of a version of a job, in YAML. Raises NotFound."""
        return str(self.get(f"{job_path(name)}/document", version=version)["text"])

    def order(self, name: str, verb: str) -> JsonObject:
        """Order `start`, `stop`, `drain`, or `restart`. Returns immediately. Raises NotFound, Conflict."""
        return self._ask("POST", f"{job_path(name)}/{verb}")

    def delete_job(self, name: str, *, results: bool = False, dead_letters: bool = False) -> JsonObject:
        """Delete a stopped job. Raises NotFound, Conflict."""
        parameters = {"results": str(results).lower(), "dead_letters": str(dead_letters).lower()}
        return self._ask("DELETE", job_path(name), params=parameters)

    def reset_job(self, name: str, to: str) -> JsonObject:
        """Restart a stopped job at `start`, `earliest`, `latest`, or a log time in ms, with a new generation. Raises NotFound,
        Conflict."""
        return self._ask("POST", f"{job_path(name)}/reset", params={"to": to})

    def delete_stream(self, name: str, *, keep_topic: bool = False) -> JsonObject:
        """Delete a stream that no job needs. Raises NotFound, Conflict."""
        query = {"keep_topic": str(keep_topic).lower()}
        return self._ask("DELETE", f"/v1/streams/{quote(name, safe='')}", params=query)

    def start_audit(self, name: str, after_ms: int | None = None, up_to_ms: int | None = None) -> JsonObject:
        """Start an audit. Returns immediately. Raises NotFound; Conflict while another audit runs."""
        parameters = {"after_ms": after_ms, "up_to_ms": up_to_ms}
        query = {key: value for key, value in parameters.items() if value is not None}
        return self._ask("POST", f"{job_path(name)}/audit", params=query)

    def audit(self, name: str) -> JsonObject:
        """Return the job's last audit. Raises NotFound."""
        return self.get(f"{job_path(name)}/audit")

    def wait_for_audit(self, name: str, on_response: Callable[[JsonObject], None]) -> JsonObject:
        """Poll the job's audit until it has ended, and return its report. `on_response` is called with every response. Raises
        PermanentError if it failed."""
        patience = RetryingPoller()
        while True:
            audit = patience.ask(self.audit, name)
            on_response(audit)
            if audit["state"] == "failed":
                raise PermanentError(f"the audit of job {name} failed: {audit['message']}")
            if audit["state"] == "done":
                report: JsonObject = audit["report"]
                return report
            time.sleep(POLL_S)

    def start_backfill(self, name: str, from_ms: int, to_ms: int | None = None) -> JsonObject:
        """Request a backfill. Returns immediately. Raises NotFound, Conflict."""
        query = {"from_ms": from_ms} | ({} if to_ms is None else {"to_ms": to_ms})
        return self._ask("POST", f"{job_path(name)}/backfills", params=query)

    def backfills(self, name: str) -> list[JsonObject]:
        """Return the job's backfills, the oldest first. Raises NotFound."""
        found: list[JsonObject] = self.get(f"{job_path(name)}/backfills")["backfills"]
        return found

    def backfill(self, name: str, generation: int) -> JsonObject:
        """Return the current state of a backfill. Raises NotFound."""
        return self.get(f"{job_path(name)}/backfills/{generation}")

    def cancel_backfill(self, name: str, generation: int) -> JsonObject:
        """Cancel a backfill. Raises NotFound; Conflict if it has ended or is swapping."""
        return self._ask("POST", f"{job_path(name)}/backfills/{generation}/cancel")

    def wait_for_backfill(self, name: str, generation: int, on_response: Callable[[JsonObject], None]) -> JsonObject:
        """Poll a backfill until it is complete, and return it. `on_response` is called with every response.

        Raises PermanentError if it fails or is cancelled."""
        patience = RetryingPoller()
        while True:
            backfill = patience.ask(self.backfill, name, generation)
            on_response(backfill)
            if backfill["state"] == "complete":
                return backfill
            if backfill["state"] in ("failed", "cancelled"):
                raise PermanentError(
                    f"backfill {generation} of job {name} is {backfill['state']}, and its results are not "
                    f"visible: {backfill['message']}"
                )
            time.sleep(POLL_S)

    def wait_for_job(self, name: str, is_so: Callable[[JsonObject], bool], what: str, timeout_s: float) -> JsonObject:
        """Poll the job until `is_so` returns True. Raises PermanentError if it fails, TransientError at the deadline."""
        deadline = time.monotonic() + timeout_s
        patience = RetryingPoller(deadline)
        while True:
            job = patience.ask(self.job, name)
            if is_so(job):
                return job
            if job["state"] == "failed" and job["desired"] != "stopped":
                raise PermanentError(f"job {name} has failed: {job['message']}")
            if time.monotonic() > deadline:
                reason = f" ({job['message']})" if job["message"] else ""
                raise TransientError(
                    f"job {name} is {job['state']}{reason} and not {what} after {timeout_s:g} s, but it "
                    f"continues; check it with strandline job status {name}"
                )
            time.sleep(POLL_S)

    def wait_for_batch(
        self, name: str, on_response: Callable[[JsonObject], None], timeout_s: float = float("inf")
    ) -> JsonObject:
        """Poll the batch until it has completed, and return it. `on_response` is called with every response.

        Raises PermanentError if it fails or is stopped, TransientError at the deadline."""

        def has_completed(job: JsonObject) -> bool:
            on_response(job)
            if job["state"] in (JobState.STOPPED, JobState.DRAINED) and job["desired"] != Desired.RUNNING:
                raise PermanentError(
                    f"batch {name} was stopped before it had completed; to continue, run strandline job start {name}"
                )
            return bool(job["state"] == COMPLETED)

        return self.wait_for_job(name, has_completed, COMPLETED, timeout_s)

    def _post_yaml(
        self, path: str, text: bytes, source: str, query: Mapping[str, str | float] | None = None, **options: Any
    ) -> JsonObject:
        parameters = {"source": source[-300:], **(query or {})}
        headers = {"Content-Type": "application/yaml"}
        return self._ask("POST", path, content=text, params=parameters, headers=headers, **options)

    def _ask(self, method: str, path: str, **options: Any) -> JsonObject:
        try:
            response = self._http.request(method, path, **options)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            remedy = "check that the stack runs, or start it with strandline up"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                remedy = "pass the CA certificates that verify it: strandline --ca FILE ..."
            raise ControlUnavailable(
                f"the control service at {self._url} does not respond ({error}); {remedy}"
            ) from error
        try:
            answer = response.json()
        except ValueError as error:
            raise ControlUnavailable(
                f"the server at {self._url} is not a control service; check the address"
            ) from error
        if response.is_success and isinstance(answer, dict):
            return answer
        raise error_of(response.status_code, answer if isinstance(answer, dict) else {})


class RetryingPoller:
    """Requests the responses of a polling loop, and tolerates transient errors. An error is raised after NO_ANSWER_MAX_S
    without a response, at the deadline, and before the first response, because then probably no service runs."""

    def __init__(self, deadline: float = float("inf")) -> None:
        self._deadline = deadline
        self._answered = float("-inf")

    def ask(self, look: Callable[..., JsonObject], *arguments: str | int, **query: str | int) -> JsonObject:
        """Return the next response, with as many requests as necessary. Raises the errors of `look`."""
        while True:
            try:
                answer = look(*arguments, **query)
            except TransientError:
                if time.monotonic() > min(self._answered + NO_ANSWER_MAX_S, self._deadline):
                    raise
                time.sleep(POLL_S)
            else:
                self._answered = time.monotonic()
                return answer


def authorization(token: str | None) -> dict[str, str]:
    """Return the header with a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _notice_path(name: str) -> str:
    return f"/v1/notices/{quote(name, safe='')}"


def job_path(name: str) -> str:
    """Return the path of a job in the API."""
    return f"/v1/jobs/{quote(name, safe='')}"


def error_of(status: int, problem: JsonObject) -> StrandlineError:
    """Return the error of a response, as the class that determines the reaction."""
    detail = str(problem.get("detail", f"the control service responded with {status}"))
    if status == 401:
        detail += f" (the command line reads it from {TOKEN_VARIABLE} or --token-file)"
    if problem.get("code") == InvalidDocument.code:
        return InvalidDocument(
            [Problem(one["detail"], one["pointer"], one["source"], one["line"]) for one in problem["errors"]]
        )
    error = _CLASS_OF_STATUS.get(status, PermanentError)(detail)
    error.code = str(problem.get("code", error.code))
    return error
