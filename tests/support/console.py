"""A control service with jobs in different states, for tests and pictures of the console. It needs no server and no Spark.

python -m tests.support.console     serve it until Ctrl-C; with `tokens` it requires a sign-in
"""

from __future__ import annotations

import json
import math
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from pydantic import SecretStr

from strandline.access.authenticator import Authenticator
from strandline.access.oidc import OidcIssuer
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, JobState, SliceKind
from strandline.log.kafka_status import LogRange, NewestRecords, Sample, StoredDeadLetter
from strandline.processing.lineage.views import (
    OpenWindow,
    OpenWindows,
    RecordLife,
    RecordPathView,
    RecordResultView,
    RecordRowView,
    ResultSources,
    SourceRecord,
    StepOutcome,
)
from strandline.results.charts.series import Series, SeriesResult, VersionResults
from strandline.services.control import ControlSettings
from strandline.services.jobs import results, traces
from strandline.services.jobs.examinations import Examinations
from strandline.services.jobs.record_relay import RecordRelay
from strandline.services.jobs.sending import KnownGateways
from strandline.services.jobs.shown_settings import SettingView, setting_views
from strandline.services.jobs.traces import Traces
from strandline.services.rest.api import create_app
from strandline.services.supervision.audit_jobs import AuditJobs
from tests.support.console_operation import CREWS, KnownAudits, furnish_operation, idle_backfills, sites
from tests.support.control import Api, Log, ObedientSupervisor, serving, with_built_routes
from tests.support.ledgers import _sync_nothing, a_checkpoint, a_slice
from tests.support.oidc_sign_in import AUDIENCE, RIGHTS, SignInProvider
from tests.support.served_gateway import KeptRecords, served_gateway
from tests.support.tokens import tokens_of_each_kind
from tests.support.waiting import wait_until

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DAY_MIN = 1_440
TURBINES = """\
stream: turbines
partitions: 4
schema: {turbine: string, site_id: string, ts: timestamp, state: string, power: double, wind: 'double?'}
key: turbine
retention: 7d
"""
READINGS = {
    "host": "edge-01",
    "machine": {"cores": 8, "load": 3.4, "memory_bytes": 34_359_738_368, "memory_free_bytes": 21_900_000_000},
    "disk": {"directory": "/var/lib/strandline", "total_bytes": 512_000_000_000, "free_bytes": 41_000_000_000},
    "certificates": [],
}
"""Readings of the machine of a control service. Less than a tenth of its disk is free."""
HEALTH = """\
pipeline: turbine-health
input: {stream: turbines}
event_time: {field: ts, delay: 2m, idle_timeout: 1m}
steps:
  - derive: {load: power / 3000}
  - where: state <> 'service'
  - window:
      name: per_minute
      tumbling: 1m
      by: [site_id, turbine]
      aggregate: {n: count(*), load: avg(load), peak: max(load), wind: avg(wind)}
    emit: [{elasticsearch: turbine-minute}]
  - window:
      name: hourly
      tumbling: 1h
      by: [site_id, turbine]
      aggregate: {n: sum(n), load: avg(load)}
    emit: [{elasticsearch: turbine-hour}, {stream: turbine-hours}]
"""
PUMPS = """\
stream: pumps
partitions: 2
schema: {pump: string, ts: timestamp, pressure: double, flow: 'double?'}
key: pump
retention: 7d
"""
PRESSURE = """\
pipeline: pump-pressure
input: {stream: pumps}
event_time: {field: ts, delay: 30s}
steps:
  - where: pressure > 0
  - window: {name: five_minutes, tumbling: 5m, by: [pump], aggregate: {n: count(*), pressure: avg(pressure)}}
    emit: [{elasticsearch: pump-pressure}]
"""
METERS = """\
stream: meters
partitions: 1
schema: {meter: string, ts: timestamp, energy: double}
key: meter
retention: 7d
"""
ENERGY = """\
pipeline: meter-energy
input: {stream: meters}
event_time: {field: ts, delay: 1m}
steps:
  - window: {name: quarter_hour, tumbling: 15m, by: [meter], aggregate: {energy: sum(energy)}}
    emit: [{elasticsearch: meter-energy}]
"""
EXPORT = """\
pipeline: turbine-export
input: {stream: turbines}
event_time: {field: ts, delay: 2m}
steps:
  - enrich: {lookup: sites, key: turbine, add: [place], optional: true}
  - where: power > 2500
  - emit: [{elasticsearch: turbine-peaks}]
"""


class FurnishedLog(Log):
    """Topics whose newest records have different ages."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self.ranges = {
            "turbines": LogRange(dict.fromkeys(range(4), 0), {0: 412_118, 1: 409_733, 2: 411_024, 3: 398_871}),
            "pumps": LogRange({0: 0, 1: 0}, {0: 48_120, 1: 47_901}),
            "meters": LogRange({0: 0}, {0: 9_304}),
            "turbine-hours": LogRange({0: 0, 1: 0}, {0: 1_210, 1: 1_188}),
            "boilers": LogRange({0: 0, 1: 0}, {0: 30, 1: 30}),
            "Invoices": LogRange({0: 0}, {0: 8}),
            "pump-pressure.dead-letter": LogRange({0: 0}, {0: 64}),
        }
        self.newest = {
            "turbines": {0: now_ms - 1_200, 1: now_ms - 800, 2: now_ms - 2_400, 3: now_ms - 9 * MINUTE_MS},
            "pumps": {0: now_ms - 3_000, 1: now_ms - 4_200},
            "meters": {0: now_ms - 47 * MINUTE_MS},
            "turbine-hours": {0: now_ms - 130_000, 1: now_ms - 130_000},
        }
        self._began_ms = now_ms

    def sample(self, topic: str, count: int) -> Sample:
        """Return the records of boilers. Other topics have the records of the double."""
        if topic != "boilers":
            return super().sample(topic, count)
        first_ms = self._began_ms - 60 * 5_000
        rows = [
            {"boiler": f"b-{at % 2}", "ts": first_ms + at * 5_000, "temperature": round(61 + 3 * math.sin(at / 9), 2)}
            for at in range(60)
        ]
        return Sample([json.dumps(row).encode() for row in rows], 2, self.retention_ms(topic))

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
        """240 turbines send, and T007 has been silent for 41 minutes. Boilers send records of their event time. Other topics
        have the records of the double."""
        if topic == "boilers":
            values = [*self.sample(topic, records_max).values][-records_max:]
            log_times_ms = [int(json.loads(value)["ts"]) + 800 for value in values]
            count = len(values)
            return NewestRecords([0] * count, [*range(count)], log_times_ms, [*values], [None] * count)
        if topic != "turbines":
            return super().newest_records(
                topic, records_max, bytes_max, headers, since, headers_beside, partitions, until
            )
        now_ms = time.time_ns() // 1_000_000
        found = NewestRecords(is_cut=True)
        ends = self.ranges[topic].offset_next
        for partition in (3,) if partitions else range(4):
            for at in range(2_400):
                age_ms = (2_400 - at) * 1_500
                turbine = 4 * (at % 60) + partition
                if turbine == 7 and age_ms < 41 * MINUTE_MS:
                    continue
                found.partitions.append(partition)
                found.offsets.append(ends[partition] - 2_400 + at)
                found.log_times_ms.append(now_ms - age_ms)
                found.values.append(_reading(turbine, self._began_ms - age_ms))
                found.header_values.append(None)
        return found

    def newest_log_times(self, topic: str, partitions: Collection[int], wait_s: float | None = None) -> dict[int, int]:
        """Records keep arriving, except where the newest one is older than a minute."""
        passed_ms = time.time_ns() // 1_000_000 - self._began_ms
        newest = self.newest[topic]
        return {at: newest[at] + (passed_ms if self._began_ms - newest[at] < MINUTE_MS else 0) for at in partitions}


def _reading(turbine: int, at_ms: int) -> bytes:
    """The record of a turbine at that time. Not encoded as JSON by a library: a list of devices has thousands of them."""
    power = 1_800 + 900 * math.sin(at_ms / 600_000 + turbine)
    return b'{"turbine": "T%03d", "site_id": "S%d", "ts": %d, "state": "running", "power": %.1f, "wind": %.2f}' % (
        turbine, turbine % 5, at_ms - 700, power, power / 200,
    )  # fmt: skip


def furnish(api: Api, now_ms: int, step_min: int) -> None:
    """Give the service four jobs with the history of a day: one behaves, one rejects, one has failed, one is stopped."""
    ledger = api.ledger
    made = random.Random(7)
    _at(ledger, now_ms - 26 * HOUR_MS)
    for text in (CREWS, sites(1), TURBINES, HEALTH, EXPORT, PUMPS, PRESSURE, METERS, ENERGY, sites(2)):
        with ThreadPoolExecutor(1) as thread:  # Playwright runs an event loop in the thread of the test
            applied = thread.submit(api.apply, text).result()
        assert applied.status_code == 200, applied.text
    assert api.ledger.streams(), "the documents are registered"
    ledger.record_readings("control-1", READINGS)
    _run(ledger, api.log, "pump-pressure", now_ms, _days_work(now_ms, made, step_min, rate=60, bad_since=5.0), epochs=1)
    _run(ledger, api.log, "meter-energy", now_ms, _days_work(now_ms, made, step_min, rate=18, until=0.8), epochs=2)
    _run(ledger, api.log, "turbine-export", now_ms, _days_work(now_ms, made, step_min, rate=1_150, until=7.0), epochs=1)
    _run(ledger, api.log, "turbine-health", now_ms, _days_work(now_ms, made, step_min, gap=(9.5, 10.2)), epochs=3)
    _at(ledger, now_ms - 47 * MINUTE_MS)
    ledger.move_job(
        "meter-energy", JobState.FAILED, "topic meters no longer has offset 9304 of partition 0: retention removed it"
    )
    ledger.record_event("job_failed", "job meter-energy has failed: the log is truncated", "meter-energy", 2)
    _at(ledger, now_ms - 7 * HOUR_MS)
    ledger.record_event(
        "stop_ordered", "dashboard ordered: stop job turbine-export", "turbine-export", principal="dashboard"
    )
    ledger.move_job("turbine-export", JobState.STOPPING)
    ledger.move_job("turbine-export", JobState.STOPPED)
    api.log.letters = _letters(now_ms)
    _at(ledger, None)
    furnish_operation(ledger, now_ms)


def _at(ledger: Ledger, at_ms: int | None) -> None:
    """Set the clock of the ledger, or let it run again."""
    ledger._clock_ms = (lambda: time.time_ns() // 1_000_000) if at_ms is None else (lambda: at_ms)


Work = Sequence[tuple[int, int, Mapping[str, int]]]
"""(time, records, rejected by reason) of each slice."""


def _days_work(
    now_ms: int,
    made: random.Random,
    step_min: int,
    *,
    rate: int = 1_150,
    gap: tuple[float, float] = (0, 0),
    bad_since: float = 0.0,
    until: float = 0.0,
) -> Work:
    """A slice each `step_min` minutes, and each minute at the end. `gap`, `bad_since`, `until`: in hours before now."""
    before = range(DAY_MIN // step_min - 1, 20 // step_min, -1)
    times = [now_ms - at * step_min * MINUTE_MS for at in before] + [now_ms - at * MINUTE_MS for at in range(19, 0, -1)]
    work = []
    for at in times:
        hours = (now_ms - at) / HOUR_MS
        if gap[0] < hours < gap[1] or hours < until:
            continue
        wave = 0.65 + 0.35 * math.sin(at / HOUR_MS / 24 * 2 * math.pi)
        records = int(rate * wave * made.uniform(0.85, 1.15)) * (1 if at > now_ms - 20 * MINUTE_MS else step_min)
        rejected: dict[str, int] = {"late": records // 900} if records > 900 else {}
        if bad_since and hours < bad_since:
            rejected["decode"] = int(records * 0.72)
            rejected["range"] = int(records * 0.05)
        work.append((at, records, rejected))
    return work


def _run(ledger: Ledger, log: Log, job: str, now_ms: int, work: Work, epochs: int) -> None:
    """Let the job run, and commit the slices under `epochs` runs, one after the other."""
    stages = {
        "turbine-health": ["per_minute", "hourly"],
        "pump-pressure": ["five_minutes"],
        "meter-energy": ["quarter_hour"],
    }
    row = ledger.job(job)
    version = row.version
    stream = {"pump-pressure": "pumps", "meter-energy": "meters"}.get(job, "turbines")
    partitions = {"pumps": 2, "meters": 1}.get(stream, 4)
    offsets = dict.fromkeys(range(partitions), 0)
    each = max(1, len(work) // epochs)
    epoch = 0
    for number, (at, records, rejected) in enumerate(work, 1):
        if (number - 1) // each >= epoch and epoch < epochs:
            _at(ledger, at - 20_000)
            if epoch == 0:
                ledger.move_job(job, JobState.STARTING)
            epoch = ledger.begin_run(job, 4_000 + epoch).epoch
            ledger.move_job(job, JobState.RUNNING)
            facts = {
                "way": "rewind",
                "records": records,
                "slice_first": number,
                "slice_committed": number - 1,
                "epoch": epoch,
            }
            ledger.record_event("run_begins", f"run {epoch} rewound over {records} records", job, epoch, facts)
        before = dict(offsets)
        for partition in offsets:
            offsets[partition] += records // partitions
        reached = {p: at - 2_000 - 1_500 * p - (40_000 if p == 3 else 0) for p in offsets}
        watermark = min(reached.values()) - 120_000
        planned = at - 900 - records // 40
        ledger.plan_slice(
            a_slice(
                number, epoch, job, version=version, offsets_first={stream: before}, offsets={stream: dict(offsets)},
                cut_time_ms=planned, watermark_ms=watermark, rule=EventTimeRule(120_000, 60_000), reached={stream: reached},
                silence_ms={}, kind=SliceKind.LIVE if number % 12 else SliceKind.CATCH_UP, planned_ms=planned,
                stream_versions={stream: 1},
            )
        )  # fmt: skip
        accepted = records - sum(rejected.values())
        ledger.commit_checkpoint(
            a_checkpoint(
                number, epoch, job, version=version, latest_event_ms=max(reached.values()), latest_log_ms=at - 1_500,
                records=records, accepted=accepted, rejected=dict(rejected), committed_ms=at, result_offsets={},
                emitted={stage: at - at % MINUTE_MS for stage in stages.get(job, [])},
                results={stage: accepted // (3_000 if place else 60) for place, stage in enumerate(stages.get(job, []))},
                closes_ms=watermark, reached={stream: reached}, dead_letter_offsets={},
            )
        )  # fmt: skip
    log.ranges[stream] = LogRange(dict.fromkeys(offsets, 0), {at: end + 37 + 5 * at for at, end in offsets.items()})


def _letters(now_ms: int) -> list[StoredDeadLetter]:
    """Dead letters of three kinds. The double has them for every job."""
    made = random.Random(3)
    letters = []
    for number in range(64):
        partition, offset = number % 2, 46_000 + 13 * number
        at = now_ms - (64 - number) * 4 * MINUTE_MS - 20_000
        reason, message, step, value = "decode", "", "", b""
        if number % 16 == 5:
            reason, message = (
                "decode",
                f"the record is not valid JSON: unexpected end of data at byte {38 + number % 7}",
            )
            value = b'{"pump": "p-07", "ts": "2026-11-29T08:'
        elif number % 5 == 3:
            reason, step = "expression", "where"
            message = "pressure / flow: division by zero"
            value = json.dumps({"pump": "p-03", "ts": at, "pressure": 4.25, "flow": 0.0}).encode()
        else:
            message = f"field 'pressure': expected double, got string '{made.choice(['ERR', 'n/a', '—'])}'"
            value = json.dumps(
                {"pump": f"p-{made.randint(1, 9):02d}", "ts": at, "pressure": "ERR", "firmware": "2.4.1"}
            ).encode()
        headers = {
            "reason": reason, "message": message, "step": step, "stream": "pumps", "partition": str(partition),
            "offset": str(offset),
        }  # fmt: skip
        letters.append(StoredDeadLetter(number, at, headers, value))
    return letters


def drawn_series(url: str, query: Any, from_ms: int | None, to_ms: int | None, windows: int) -> SeriesResult:
    """Stand in for Elasticsearch: the results of six keys."""
    now_ms = time.time_ns() // 1_000_000
    last = now_ms - now_ms % query.every_ms - 2 * query.every_ms
    points = min(windows, 240)
    step = max(query.every_ms, math.ceil(windows / points) * query.every_ms)
    first = last - (points - 1) * step
    series = []
    for number in range(6):
        values = [
            (
                first + at * step,
                round(
                    0.55
                    + 0.3 * math.sin(at / 24 + number * 0.9)
                    + 0.05 * math.sin(at * (1.3 + number))
                    + number * 0.02,
                    4,
                ),
            )
            for at in range(points)
            if not (number == 2 and 120 < at < 138)
        ]
        series.append(Series(f"T{number + 1:02d}", values))
    return SeriesResult(first, last, step, 6 * points, series)


def drawn_versions(_url: str, alias: str, _time: object) -> list[VersionResults]:
    """Stand in for the query of the versions in an index: each has as many results."""
    return [VersionResults(number, 143, 0, 0) for number in (1, 2)]


def drawn_trace(
    traces: Traces, job: str, arguments: Sequence[str], remedy: str = ""
) -> RecordLife | ResultSources | OpenWindows:
    """Stand in for the process of a trace: the life of a record of a turbine, the records of a result, and open windows."""
    now_ms = time.time_ns() // 1_000_000
    if arguments[0] == "windows":
        return _drawn_windows(job, arguments, now_ms)
    minute = now_ms - now_ms % MINUTE_MS - 4 * MINUTE_MS
    hour = now_ms - now_ms % HOUR_MS
    if arguments[0] == "result":
        records = [SourceRecord("turbines", 2, 402_109 + 4 * at) for at in range(12)]
        return ResultSources(job, arguments[1], arguments[2], 1, 196, records, len(records), 6_912)
    stream, partition, offset = arguments[1], int(arguments[2]), int(arguments[3])
    fields = {"site_id": "north", "turbine": "T07", "ts": "2026-11-29T08:41:12.250000Z", "power": 2134.5, "wind": 11.2}
    kept = StepOutcome("steps[0].derive", "derive", "load = power / rated_power", "kept", values={"load": 0.854})
    export = StepOutcome("steps[0].where", "where", "where load > 0.9", "left_out")
    paths = [RecordPathView("per_minute", [kept]), RecordPathView("hourly", [kept])]
    if job == "turbine-export":
        paths = [RecordPathView("emission1", [export])]
    results = [
        RecordResultView(
            "per_minute", "emitted", minute, minute + MINUTE_MS, "q3bT0hT4ZWmMyYb1Bfh0sg",
            ["elasticsearch turbine-minute"], 1, 1, 196, None,
            {"site_id": "north", "turbine": "T07", "n": 12, "load": 0.8412, "peak": 2188.0},
        ),
        RecordResultView(
            "hourly", "open", hour, hour + HOUR_MS, "mF7c1DkXl0yKcAqMKd3v0w",
            ["elasticsearch turbine-hour", "stream turbine-hours"], 1, 1, None, None,
            {"site_id": "north", "turbine": "T07", "n": 492, "load": 0.7981},
        ),
    ]  # fmt: skip
    value = json.dumps({"site_id": "north", "turbine": "T07", "ts": minute + 12_250, "power": 2134.5, "wind": 11.2})
    is_export = job == "turbine-export"
    return RecordLife(
        job, stream, partition, offset, "read",
        log_time_ms=minute + 13_020, key="T07", value=value, slice=195, version=1, stream_version=1,
        late_below_ms=minute - 2 * MINUTE_MS, closed_ms=minute - MINUTE_MS, lookups={},
        rows=[RecordRowView(None, minute + 12_250, fields, "accepted", paths=paths)], row_count=1,
        results=[] if is_export else results, open_until_ms=None if is_export else hour + HOUR_MS, records_read=6_912,
    )  # fmt: skip


def _drawn_windows(job: str, arguments: Sequence[str], now_ms: int) -> OpenWindows:
    """Return open windows of 60 turbines: three minutes of each, and an hour."""
    minute, hour = now_ms - now_ms % MINUTE_MS, now_ms - now_ms % HOUR_MS
    options = dict(one.removeprefix("--").split("=", 1) for one in arguments[1:])
    spans = [("per_minute", minute + at * MINUTE_MS, MINUTE_MS, 12 - 5 * at) for at in range(-3, 1)]
    windows = [
        OpenWindow(
            stage, {"site_id": "north", "turbine": f"T{number:02d}"}, start, start + size, False, records + number
        )
        for stage, start, size, records in [*spans, ("hourly", hour, HOUR_MS, 480)]
        for number in range(1, 61)
    ]
    stages = {"per_minute": 240, "hourly": 60}
    key, stage = options["key"].lower(), options.get("stage")
    found = [one for one in windows if key in one.key["turbine"].lower() and stage in (None, one.stage)]
    closed_ms = minute - 3 * MINUTE_MS
    return OpenWindows(job, 43, 1, closed_ms, now_ms - 4_000, stages, len(found), found, 6_912)


FINDINGS = [
    ("Kafka", "ok", "answers on kafka-1.example.org:9093 with 3 brokers, as user strandline", ""),
    (
        "Kafka",
        "warning",
        "topics have 1 replica(s), although 3 brokers are up",
        "set STRANDLINE_STREAM_REPLICATION=3, so that an acknowledged record survives the loss of a broker",
    ),
    ("Elasticsearch", "ok", "answers at https://search.example.org:9200 with version 8.19.2", ""),
    (
        "ledger",
        "wrong",
        "its schema is at revision r0001, and this release needs r0002",
        "to create it or bring it up to date, run python -m strandline.services.setup, or strandline up",
    ),
    ("machine", "ok", "the data directory /var/lib/strandline has 67.3 GB free", ""),
]


SECRET = "example-secret"


def drawn_settings() -> list[SettingView]:
    """Return the settings of a control service with its own servers."""
    settings = ControlSettings.model_construct(
        ledger_url=f"postgresql+psycopg://strandline:{SECRET}@ledger.example.org/strandline?sslmode=verify-full",
        kafka_bootstrap="kafka-1.example.org:9093",
        kafka_security_protocol="SASL_SSL",
        kafka_username="strandline",
        kafka_password=SecretStr(SECRET),
        auth="tokens",
        stream_replication=3,
        sender_urls={"http": "https://ingest.example.org"},
    )
    return setting_views(settings, {"STRANDLINE_KAFKA_PASSWORD_FILE": "/run/secrets/kafka"})


def drawn_examinations(directory: Path) -> Examinations:
    """Return examinations of a process that writes FINDINGS. The first one has ended."""
    fields = ("subject", "state", "message", "remedy")
    text = json.dumps([dict(zip(fields, one, strict=True)) for one in FINDINGS])
    made = Examinations(directory, command=lambda: [sys.executable, "-c", f"print({text!r})"], kept_s=0)
    made.start()
    wait_until(made.state, lambda state: not state.is_running, "an examination")
    return made


@contextmanager
def console_with_provider(directory: Path) -> Iterator[tuple[str, SignInProvider]]:
    """Serve the console with a provider at which users sign in; yields its URL and the provider."""
    provider = SignInProvider()
    try:
        with furnished_console(directory, tokens=True, provider=provider) as (url, _, _):
            provider.trust(url)
            yield url, provider
    finally:
        provider.close()


@contextmanager
def furnished_console(
    directory: Path,
    *,
    tokens: bool = False,
    furnished: bool = True,
    step_min: int = 60,
    provider: SignInProvider | None = None,
) -> Iterator[tuple[str, dict[str, str], Api]]:
    """Serve the console on a free port; yields its URL, a token of each kind (none without `tokens`), and the service.

    `step_min`: minutes between two slices in the history of each job. `provider`: its users can sign in, too. Records that
    users send arrive at a gateway with the same tokens: `api.sent`.
    """
    ledger = Ledger.open(f"sqlite:///{directory / 'ledger.sqlite'}")
    sa.event.listen(ledger._database._readers, "connect", _sync_nothing)
    with served_gateway(ledger, tokens=tokens) as (gateway, sent):
        yield from _served(ledger, directory, gateway, sent, tokens, furnished, step_min, provider)


def _served(
    ledger: Ledger,
    directory: Path,
    gateway: str,
    sent: KeptRecords,
    tokens: bool,
    furnished: bool,
    step_min: int,
    provider: SignInProvider | None,
) -> Iterator[tuple[str, dict[str, str], Api]]:
    now_ms = time.time_ns() // 1_000_000
    log = FurnishedLog(now_ms)
    supervisor = ObedientSupervisor(ledger)
    issuer = OidcIssuer(provider.url, AUDIENCE, rights=RIGHTS) if provider is not None else None
    keeper = Authenticator(ledger, look_s=1, kept_s=60, issuer=issuer) if tokens else None
    if furnished:
        furnish(_service(ledger, log, supervisor, None), now_ms, step_min)
    known = KnownGateways({"http": gateway, "mqtt-listener": "mqtt://127.0.0.1:1884"}, 0, can_relay=True)
    api = _service(
        ledger, log, supervisor, keeper, RecordRelay(gateway), known, KnownAudits(ledger, now_ms) if furnished else None
    )
    api.sent = sent
    if furnished:
        vars(api._dependencies)["examinations"] = drawn_examinations(directory)
        vars(api._dependencies)["settings"] = drawn_settings
    made = tokens_of_each_kind(ledger, "turbines") if tokens else {}
    with (
        patch.object(results, "read_series", drawn_series),
        patch.object(results, "read_versions", drawn_versions),
        patch.object(Traces, "_run", drawn_trace),
        patch.object(traces, "origin_of", lambda *_: {"stage": "per_minute", "version": 1, "emission": 196}),
    ):
        try:
            client = provider.client if provider is not None else None
            app = with_built_routes(create_app(api._dependencies, (), keeper, oidc_client=client))
            is_ending = threading.Event()
            app.state.is_ending = is_ending.is_set
            with serving(app) as url:
                try:
                    yield url, made, api
                finally:
                    is_ending.set()  # pages follow events, and may still be open
        finally:
            if keeper is not None:
                keeper.close()
            ledger.close()


def _service(
    ledger: Ledger,
    log: Log,
    supervisor: ObedientSupervisor,
    keeper: Authenticator | None,
    relay: RecordRelay | None = None,
    gateways: KnownGateways | None = None,
    audits: AuditJobs | None = None,
) -> Api:
    with patch("tests.support.control.Log", lambda: log):
        return Api(
            ledger,
            supervisor,
            audits=audits,
            backfills=idle_backfills(ledger, log),
            authenticator=keeper,
            relay=relay,
            gateways=gateways,
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with furnished_console(
            Path(folder), tokens="tokens" in sys.argv, furnished="empty" not in sys.argv, step_min=10
        ) as (where, known, _):
            print(
                where, json.dumps({kind: known[kind] for kind in ("viewer", "operator") if kind in known}), flush=True
            )
            signal.pause()
