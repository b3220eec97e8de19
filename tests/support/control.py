"""A control service without servers: a real ledger, doubles for Kafka, Elasticsearch and the supervisor."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.routing import _IncludedRouter

from strandline.access.authenticator import Authenticator
from strandline.core.errors import IndexUnavailable, LogUnavailable, NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, JobRow, JobState
from strandline.log.admin import Hazard, KafkaAdmin, TopicDescription
from strandline.log.answers import Answers, good
from strandline.log.kafka_status import (
    DeadLetterRange,
    KafkaStatus,
    LogRange,
    NewestRecords,
    Sample,
    StoredDeadLetter,
    TopicSummary,
)
from strandline.log.topics import require_complete_log
from strandline.notices.service import NoticeService
from strandline.notices.view import Surroundings
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.slices.old_slices import SlicesKept
from strandline.services.jobs.apply_documents import DocumentApplier
from strandline.services.jobs.dead_letters import DeadLetters
from strandline.services.jobs.examinations import Examinations, ExaminationView
from strandline.services.jobs.job_lifecycle import JobLifecycle
from strandline.services.jobs.record_relay import RecordRelay
from strandline.services.jobs.sending import KnownGateways
from strandline.services.rest.api import create_app
from strandline.services.rest.dependencies import Dependencies
from strandline.services.supervision.audit_jobs import AuditJobs
from strandline.services.supervision.backfill_jobs import BackfillJobs
from strandline.services.supervision.dead_letter_copies import DeadLetterCopies
from strandline.services.supervision.lookups.follower import LookupFollower
from strandline.services.supervision.old_slices import SliceCleanup
from strandline.services.supervision.supervisor import Supervisor
from tests.support.notices import a_channel_tools
from tests.support.typed_sources import TypedSources
from tests.support.waiting import wait_until

STREAM = """\
stream: turbines
partitions: 2
schema:
  turbine: string
  ts: timestamp
  power: double
retention: 7d
"""
PIPELINE = """\
pipeline: power
input: {stream: turbines}
event_time: {field: ts, delay: 10s}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*), peak: max(power)}}
    emit: [{elasticsearch: turbine-minute}]
"""
BOTH = f"{STREAM}---\n{PIPELINE}"
HOUR = """\
  - window: {name: per_hour, tumbling: 1h, by: [turbine], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: turbine-hour}]
"""


@dataclass(frozen=True)
class MadeTopic:
    """The fields of a topic's description that applying reads."""

    name: str
    topic_id: str
    has_senders_times: bool = False
    hazards: tuple[Hazard, ...] = ()


class Topics:
    """Replaces Kafka's topics. `id_of` may be changed, like a topic that is deleted and recreated."""

    def __init__(self, ledger: Ledger) -> None:
        """Like Kafka, it has the topics of all streams that are registered."""
        self.id_of = {row.name: row.topic_id or "id-1" for row in ledger.streams()}
        self.deleted: list[str] = []
        self.dead_letters: list[str] = []
        self.has_room: list[str] = []
        """Topics that were asked to take the largest record."""
        self.is_away = False
        self.policy = "delete"
        """The `cleanup.policy` of all topics."""
        self.has_senders_times = False
        """True if their log times are set by their producers."""
        self.hazards: tuple[Hazard, ...] = ()
        """Settings of all topics that can lose confirmed records."""

    def find(self, topic: str) -> TopicDescription | None:
        found = self.id_of.get(topic)
        return None if found is None else TopicDescription(topic, found, 2)

    def ensure_stream_topic(self, spec: StreamSpec, *, creates: bool = True) -> MadeTopic:
        if self.is_away:
            raise LogUnavailable("Kafka does not answer; try again when it does")
        if not creates and spec.stream not in self.id_of:
            raise NotFound(f"Kafka has no topic {spec.stream}")
        fresh = f"id-{1 + self.deleted.count(spec.stream)}"
        return MadeTopic(spec.stream, self.id_of.setdefault(spec.stream, fresh), self.has_senders_times)

    def delete(self, topic: str) -> None:
        self.id_of.pop(topic, None)
        self.deleted.append(topic)

    def present_stream_topic(self, spec: StreamSpec) -> MadeTopic | None:
        if self.is_away:
            raise LogUnavailable("Kafka does not answer; try again when it does")
        if spec.stream not in self.id_of:
            return None
        self.require_complete_log(spec.stream)
        return MadeTopic(spec.stream, self.id_of[spec.stream], self.has_senders_times, self.hazards)

    def ensure_dead_letter_topic(self, job: str) -> MadeTopic:
        self.dead_letters.append(job)
        return MadeTopic(f"{job}.dead-letter", "id-d", hazards=self.hazards)

    def ensure_room_for_records(self, topic: str) -> None:
        self.has_room.append(topic)

    def require_complete_log(self, topic: str) -> None:
        require_complete_log(topic, {"cleanup.policy": self.policy, "message.timestamp.type": "LogAppendTime"})


class Log(KafkaStatus):
    """Replaces Kafka's contents."""

    def __init__(self) -> None:
        self.ranges = {"turbines": LogRange({0: 0, 1: 5}, {0: 100, 1: 205})}
        self.letters: list[StoredDeadLetter] = []
        self.newest_ms = 1_700_000_000_000
        """Log time of the newest record in each partition; 0: there is none."""
        self.config = {"retention.ms": "604800000", "cleanup.policy": "delete"}
        self.waits_s: list[float | None] = []
        """How long each question about a topic or the brokers might take."""

    def check(self, wait_s: float | None = None) -> None:
        self.waits_s.append(wait_s)
        if not self.ranges:
            raise LogUnavailable("Kafka does not answer")

    def ranges_of(self, topics: Collection[str], wait_s: float | None = None) -> Answers[LogRange]:
        try:
            self.check(wait_s)
        except LogUnavailable as error:
            return dict.fromkeys(topics, error)
        return {topic: self.ranges.get(topic) or NotFound(f"no topic {topic}") for topic in topics}

    def topic_names(self) -> list[str]:
        self.check()
        return sorted(self.ranges)

    def summaries(self, topics: Collection[str]) -> Answers[TopicSummary]:
        """All topics have the settings of `config`."""
        ranges = good(self.ranges_of(topics))
        sizes = {topic: sum(held.offset_next.values()) for topic, held in ranges.items()}
        return {topic: TopicSummary(len(ranges[topic].offset_next), sizes[topic], self.config) for topic in ranges}

    def newest_log_times(self, topic: str, partitions: Collection[int], wait_s: float | None = None) -> dict[int, int]:
        return {at: self.newest_ms for at in partitions}

    def retention_ms(self, topic: str) -> int:
        return 604_800_000

    def sample(self, topic: str, count: int) -> Sample:
        self.range(topic)
        return Sample([b'{"turbine": "T1", "extra": 1}', b'{"turbine": "T1"}'], 2, self.retention_ms(topic))

    def committed_ends(self, topic: str) -> dict[int, int]:
        return dict(self.range(topic).offset_next)

    def newest_records(
        self,
        topic: str,
        records_max: int,
        bytes_max: int,
        headers: Sequence[str] = (),
        since: Mapping[int, int] | None = None,
        headers_beside: Sequence[str] = (),
        partitions: Collection[int] | None = None,
        until: Mapping[int, int] | None = None,
    ) -> NewestRecords:
        values: list[bytes | None] = [*self.sample(topic, records_max).values][:records_max]
        count = len(values)
        return NewestRecords([0] * count, [*range(count)], [1_700_000_000_000] * count, values, [None] * count)

    def dead_letters(self, job: str, after: int, limit: int) -> list[StoredDeadLetter]:
        return [letter for letter in self.letters if letter.offset > after][:limit]

    def dead_letter_range(self, job: str, since_ms: int = 0) -> DeadLetterRange | None:
        """From the first letter that is old enough."""
        offsets = [letter.offset for letter in self.letters if letter.log_time_ms >= since_ms]
        return DeadLetterRange("id-d", offsets[0], offsets[-1] + 1) if offsets else None

    def read_dead_letters(self, job: str, offset_first: int, offset_next: int) -> Generator[list[StoredDeadLetter]]:
        yield [letter for letter in self.letters if offset_first <= letter.offset < offset_next]


class Letters(DeadLetters):
    """Dead letters whose records no longer exist in the log."""

    def origin_of(self, letter: StoredDeadLetter) -> str | None:
        return None


class Admin(KafkaAdmin):
    """Changes what `Log` and `Topics` stand for."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self.bootstrap = "127.0.0.1:1"
        self._log, self._topics = log, topics

    def describe(self, topic: str, timeout_s: float | None = None) -> TopicDescription:
        return TopicDescription(topic, self._topics.id_of.get(topic, "id-1"), len(self._log.range(topic).offset_first))

    def starts(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        return dict(self._log.range(topic).offset_first)

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict(self._log.range(topic).offset_next)

    def ends_with_open(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        return self.ends(topic, partitions)

    def offsets_at(self, topic: str, partitions: Iterable[int], log_time_ms: int) -> dict[int, int]:
        """A record an offset, one every millisecond."""
        held = self._log.range(topic)
        return {
            p: max(log_time_ms, held.offset_first[p]) if log_time_ms < end else -1
            for p, end in held.offset_next.items()
        }

    def delete(self, topic: str) -> None:
        self._topics.delete(topic)
        if topic not in self._log.ranges:
            raise NotFound(f"no topic {topic}")


class IdleSupervisor(Supervisor):
    """Starts nothing; records the requests."""

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def is_alive(self) -> bool:
        return True

    def leads(self, job: str) -> bool:
        return True


class IdleExaminations(Examinations):
    """Starts nothing."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def start(self) -> ExaminationView:
        return self.state()


@cache
def _app_of_all(*, is_served: bool) -> FastAPI:
    """Return a shared app: one for all tests without a server, and one for all that serve it, one after the other.

    FastAPI builds its routes at the first request, which takes longer than most tests.
    """
    return create_app(None)


@cache
def api_description() -> dict[str, Any]:
    """Return the description of the REST API. It takes a second to compute; don't change it."""
    return create_app(None).openapi()


def with_built_routes(app: FastAPI) -> FastAPI:
    """Return the app with the built routes of the shared app. The routes are the same for all, and know no app."""
    built = _app_of_all(is_served=True).router.routes
    for at, route in enumerate(app.router.routes):
        if isinstance(route, _IncludedRouter):
            app.router.routes[at] = built[at]
    return app


class Api:
    """The app, its doubles, and a way to call it."""

    def __init__(
        self,
        ledger: Ledger,
        supervisor: IdleSupervisor | None = None,
        audits: AuditJobs | None = None,
        backfills: BackfillJobs | None = None,
        names: Collection[str] = (),
        ensure_templates: Callable[[CheckedPipeline], None] | None = None,
        elasticsearch_url: str = "http://127.0.0.1:1",
        authenticator: Authenticator | None = None,
        data_dir: Path = Path("/nowhere"),
        sources: TypedSources | None = None,
        relay: RecordRelay | None = None,
        gateways: KnownGateways | None = None,
    ) -> None:
        self.ledger = ledger
        self.sent: Any = None
        """Records that arrived at the gateway of the service, if it has one."""
        self.topics, self.log, self.supervisor = Topics(ledger), Log(), supervisor or IdleSupervisor()
        self.audits = audits or AuditJobs(ledger, Path("/nowhere"))
        self.templates: list[str] = []
        self.index_is_away = False
        self.sources = sources or TypedSources()
        applier = DocumentApplier(
            ledger,
            self.topics,
            ensure_templates or self._ensure_templates,
            lambda stream: self.log.range(stream).offset_first,
            lambda pipeline: {pipeline.input.stream: self.log.range(pipeline.input.stream).offset_first},
            self.sources,
        )
        self.discarded: list[tuple[str, int]] = []
        self.backfills = backfills or BackfillJobs(
            ledger,
            Path("/nowhere"),
            self.supervisor.leads,
            lambda stream: self.log.range(stream).offset_first,
            lambda store, generation: self.discarded.append((store, generation)),
        )
        old_slices = SliceCleanup(
            ledger, lambda job: False, lambda stream: self.log.range(stream).offset_first, SlicesKept(1, 31)
        )
        self.notices = NoticeService(ledger, "control-test", a_channel_tools(), Surroundings())
        self._dependencies = Dependencies(
            ledger,
            self.log,
            applier,
            self.supervisor,
            self.audits,
            self.backfills,
            old_slices,
            DeadLetterCopies(ledger, lambda job: False, self.log, elasticsearch_url),
            JobLifecycle(ledger, Admin(self.log, self.topics), elasticsearch_url),
            Letters(ledger, self.log, "127.0.0.1:1", 1_000_000),
            LookupFollower(ledger, self.sources, "control-test"),
            self.notices,
            elasticsearch_url,
            data_dir,
            lambda pipeline: "Elasticsearch" if self.index_is_away else None,
            requires_token=authenticator is not None,
            relay=relay or RecordRelay(None),
            gateways=gateways or KnownGateways({}, 0, can_relay=False),
        )
        vars(self._dependencies)["examinations"] = IdleExaminations()
        self._names, self._authenticator = names, authenticator

    def _ensure_templates(self, pipeline: CheckedPipeline) -> None:
        if self.index_is_away:
            raise IndexUnavailable("Elasticsearch does not answer; try again when it does")
        self.templates += [emit.name for stage in pipeline.stages for emit in stage.emits]

    @cached_property
    def app(self) -> FastAPI:
        """For who serves it. Where it has names or asks for tokens, an app of its own."""
        if self._names or self._authenticator:
            return with_built_routes(create_app(self._dependencies, self._names, self._authenticator))
        app = _app_of_all(is_served=True)
        app.state.dependencies = self._dependencies
        return app

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        app = self.app if self._names or self._authenticator else _app_of_all(is_served=False)
        app.state.dependencies = self._dependencies

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def apply(self, text: str | bytes, source: str = "farm.yaml") -> httpx.Response:
        headers = {"Content-Type": "application/yaml"}
        return self.ask("POST", "/v1/documents", content=text, params={"source": source}, headers=headers)

    def outcomes(self, text: str) -> list[str]:
        answer = self.apply(text)
        assert answer.status_code == 200, answer.text
        return [one["outcome"] for one in answer.json()["applied"]]


class ObedientSupervisor(IdleSupervisor):
    """Carries out at once what is desired, by the ledger's rules and without a process."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self._restarts: dict[str, int] = {}

    def start(self) -> None:
        """Nothing to begin."""

    def close(self) -> None:
        """Nothing to end."""

    def wake(self) -> None:
        super().wake()
        for job in self._ledger.jobs():
            for state in self._way(job):
                self._ledger.move_job(job.name, state)
                if state is JobState.STARTING:
                    self._ledger.begin_run(job.name, 1)
            self._restarts[job.name] = job.restarts

    def _way(self, job: JobRow) -> list[JobState]:
        if job.desired is Desired.RUNNING:
            is_wanted = job.state is not JobState.RUNNING or job.restarts != self._restarts.get(job.name, 0)
            return [JobState.STARTING, JobState.RUNNING] if is_wanted else []
        if job.desired is Desired.STOPPED and job.state in (JobState.CREATED, JobState.FAILED):
            return [JobState.STOPPED]
        if job.desired is Desired.STOPPED:
            return [] if job.state in (JobState.STOPPED, JobState.DRAINED) else [JobState.STOPPING, JobState.STOPPED]
        return [] if job.state is JobState.DRAINED else [JobState.DRAINING, JobState.DRAINED]


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve the app on a free port from a thread; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, bool, "serving")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
