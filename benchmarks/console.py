"""Speed, cost, and memory of the console with many jobs, dead letters, devices, and open windows, and with live data.

    python -m benchmarks.console [--jobs 500] [--pages 50] [--seconds 60] [--slice-seconds 10] [--memory-minutes 5]

A control service runs over a real Kafka and a ledger in SQLite. Its jobs are rows of the ledger that another control service
leads, so none of them runs: the figures are the cost of looking at jobs. Each job commits a slice each `--slice-seconds`, records
arrive each second, and events happen each 10 s. Chromium opens the page and uses it. Then the requests of one page are recorded,
and repeated for many pages at the same rate, with their tags, and each with a stream of events.

The program fails if the page doesn't show all jobs, dead letters, devices, and open windows, or if a request of the many pages
fails. Elasticsearch isn't started, so the view of results isn't measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from benchmarks.process_tree import tree_cpu_s
from benchmarks.report import machine_text
from benchmarks.servers import new_stack
from strandline.core.documents import read_documents
from strandline.core.record_headers import dead_letter_topic
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.models import checkpoints, slices
from strandline.ledger.states import CheckpointRow, EventTimeRule, JobState, SliceKind, SliceRow, SliceStatus
from strandline.processing.pipelines.model.pipeline import PipelineSpec

STREAMS, PARTITIONS = 10, 4
DEVICES, LETTERS, WINDOWS = 100_000, 10_000, 5_000
STEP_MS, STEPS = 600_000, 144
"""A slice each ten minutes, for a day."""
DAY_MS = 86_400_000
SETTLE_S = 15.0
LIVE_S = 1.0
WAIT_MS = 600_000
"""Limit of a wait for the page. It is only for a page that never shows its data: the times are measured."""
EVENT_S = 10.0
STREAM = """\
stream: {stream}
partitions: 4
key: device
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, power: double}}
---
"""
JOB = """\
pipeline: {job}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: 10s}}
steps:
  - where: power >= 0
  - window: {{name: daily, tumbling: 1d, by: [device], aggregate: {{n: count(*), power: avg(power)}}}}
    emit: [{{elasticsearch: {job}-daily}}]
---
"""
_OBSERVER = """
window.interactions = new Map();
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.interactionId) {
      interactions.set(entry.interactionId, Math.max(entry.duration, interactions.get(entry.interactionId) ?? 0));
    }
  }
}).observe({ type: "event", durationThreshold: 16, buffered: true });
"""


class Farm:
    """Ledger and topics of many jobs, written directly."""

    def __init__(self, directory: Path, bootstrap: str, jobs: int) -> None:
        self.url = f"sqlite:///{directory / 'ledger.sqlite'}"
        self.bootstrap = bootstrap
        self.streams = [f"sensor-{number}" for number in range(STREAMS)]
        self.jobs = [f"job-{number:03d}" for number in range(jobs)]
        self.now_ms = time.time_ns() // 1_000_000
        self.ends: dict[str, dict[int, int]] = {}

    def write(self) -> None:
        """Write topics, streams, jobs, slices, and leases."""
        Ledger.migrate(self.url)
        self._topics()
        with closing(Ledger.open(self.url)) as ledger, closing(Database(self.url)) as database:
            ledger.announce_service("elsewhere", "http://127.0.0.1:1", "/nowhere", 10 * DAY_MS)
            for name in self.streams:
                (document,) = read_documents(STREAM.format(stream=name), "benchmark")
                ledger.put_stream(name, StreamSpec.parse(document).as_document())
            for number, job in enumerate(self.jobs):
                stream = self.streams[number % STREAMS]
                text = JOB.format(job=job, stream=stream)
                (document,) = read_documents(text, "benchmark")
                ledger.submit_job(job, text, PipelineSpec.parse(document).as_document())
                ledger.move_job(job, JobState.STARTING)
                epoch = ledger.begin_run(job, 1).epoch
                ledger.set_run_streams(job, epoch, {stream: 1})
                ledger.move_job(job, JobState.RUNNING)
                ledger.claim_lease(job, "elsewhere", 10 * DAY_MS)
                with database.writing("add slices") as connection:
                    if number < STREAMS:
                        numbers = range(1, STEPS + 1)
                        connection.execute(
                            sa.insert(slices),
                            [vars(self.slice_row(job, stream, at, self.time_ms(at))) for at in numbers],
                        )
                        connection.execute(
                            sa.insert(checkpoints),
                            [self.checkpoint_row(job, stream, at, self.time_ms(at)) for at in numbers],
                        )
                    else:
                        for table in (slices, checkpoints):
                            _copy(connection, table, self.jobs[number % STREAMS], job)

    def _topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        config = {"message.timestamp.type": "LogAppendTime"}
        wanted = [NewTopic(name, PARTITIONS, 1, config=config) for name in self.streams]
        letters = dead_letter_topic(self.jobs[0])
        for made in admin.create_topics([*wanted, NewTopic(letters, 1, 1, config=config)]).values():
            made.result(60)
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 200_000}
        )
        sent: dict[str, dict[int, int]] = {}
        for number, stream in enumerate(self.streams):
            devices = (DEVICES, WINDOWS)[number] if number < 2 else 100
            sent[stream] = dict.fromkeys(range(PARTITIONS), 0)
            for device in range(devices):
                value = {
                    "device": f"D{device:06d}",
                    "ts": self.now_ms - 60_000 + device % 1_000,
                    "power": float(device % 97),
                }
                producer.produce(stream, json.dumps(value).encode(), partition=device % PARTITIONS)
                sent[stream][device % PARTITIONS] += 1
        for number in range(LETTERS):
            headers = {
                "reason": "decode", "message": f"field 'power': expected double, got string '{number}'", "step": "decode",
                "stream": self.streams[0], "partition": "0", "offset": str(number),
            }  # fmt: skip
            producer.produce(letters, b'{"device": "D1", "power": "ERR"}', headers=headers)
        if left := producer.flush(120):
            raise RuntimeError(f"{left} records were not written")
        self.ends = sent

    def slice_row(self, job: str, stream: str, number: int, at_ms: int) -> SliceRow:
        """Return slice `number` of the job. Slice STEPS reads all records of the stream, and the others none."""
        nothing, ends = dict.fromkeys(range(PARTITIONS), 0), self.ends[stream]
        return SliceRow(
            job, number, epoch=1, version=1,
            offsets_first={stream: ends if number > STEPS else nothing},
            offsets={stream: ends if number >= STEPS else nothing}, cut_time_ms=at_ms,
            watermark_ms=at_ms - 70_000, rule=EventTimeRule(10_000, None),
            reached={stream: dict.fromkeys(range(PARTITIONS), at_ms - 60_000)}, silence_ms={},
            kind=SliceKind.LIVE, status=SliceStatus.COMMITTED, planned_ms=at_ms - 900, stream_versions={stream: 1},
        )  # fmt: skip

    def checkpoint_row(self, job: str, stream: str, number: int, at_ms: int) -> dict[str, Any]:
        """Return the checkpoint of the slice with its sums, as a row of the ledger."""
        row = CheckpointRow(
            job, number, epoch=1, version=1, emitted={"daily": at_ms // DAY_MS * DAY_MS}, latest_event_ms=at_ms - 60_000,
            latest_log_ms=at_ms, records=1_000, accepted=998, rejected={"late": 2}, results={"daily": 5},
            dead_letter_offsets={0: 0}, committed_ms=at_ms, closes_ms=at_ms - 70_000,
            reached={stream: dict.fromkeys(range(PARTITIONS), at_ms - 60_000)}, result_offsets={},
        )  # fmt: skip
        totals = {
            "records_total": 1_000 * number, "accepted_total": 998 * number, "rejected_total": {"late": 2 * number},
            "results_total": {"daily": 5 * number}, "refused_total": {},
        }  # fmt: skip
        return vars(row) | totals

    def time_ms(self, number: int) -> int:
        """Return the time of a slice that was committed before the program began."""
        return self.now_ms - (STEPS - number) * STEP_MS


class LiveData:
    """Commits slices of all jobs, sends records, and records events, in a thread. The first two streams get no records, so their
    devices and windows stay as they are."""

    def __init__(self, farm: Farm, slice_s: float) -> None:
        self._farm, self._slice_s = farm, slice_s
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._numbers = dict.fromkeys(farm.jobs, STEPS)
        self.slices = self.events = 0
        self.error: Exception | None = None

    def __enter__(self) -> LiveData:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with closing(Ledger.open(self._farm.url)) as ledger, closing(Database(self._farm.url)) as database:
                self._write(ledger, database)
        except Exception as error:  # noqa: BLE001  reported by the main thread
            self.error = error

    def _write(self, ledger: Ledger, database: Database) -> None:
        producer = Producer({"bootstrap.servers": self._farm.bootstrap})
        jobs, at, event_s = self._farm.jobs, 0, time.monotonic()
        began_s, done = time.monotonic(), 0
        while not self._is_ending.wait(LIVE_S):
            due = int((time.monotonic() - began_s) / self._slice_s * len(jobs)) - done
            batch = [jobs[(at + number) % len(jobs)] for number in range(min(due, len(jobs)))]
            at, done = (at + len(batch)) % len(jobs), done + len(batch)
            now_ms = time.time_ns() // 1_000_000
            for stream in self._farm.streams[2:]:
                value = {"device": "D000000", "ts": now_ms, "power": 1.0}
                producer.produce(stream, json.dumps(value).encode(), partition=0)
            producer.flush(10)
            if batch:
                self._commit(database, batch, now_ms)
            if time.monotonic() - event_s >= EVENT_S:
                event_s = time.monotonic()
                ledger.record_event("note", "something happened", job=jobs[self.events % len(jobs)])
                self.events += 1

    def _commit(self, database: Database, jobs: list[str], now_ms: int) -> None:
        planned, committed = [], []
        for job in jobs:
            self._numbers[job] += 1
            number, stream = self._numbers[job], self._farm.streams[self._farm.jobs.index(job) % STREAMS]
            planned.append(vars(self._farm.slice_row(job, stream, number, now_ms)))
            committed.append(self._farm.checkpoint_row(job, stream, number, now_ms))
        with database.writing("add slices") as connection:
            connection.execute(sa.insert(slices), planned)
            connection.execute(sa.insert(checkpoints), committed)
        self.slices += len(jobs)


def _copy(connection: sa.Connection, table: sa.Table, job: str, to: str) -> None:
    """Copy the rows of a job for another one with the same stream."""
    columns = [sa.literal(to) if one.name == "job" else one for one in table.c]
    connection.execute(sa.insert(table).from_select(list(table.c), sa.select(*columns).where(table.c.job == job)))


@contextmanager
def control_service(directory: Path, farm: Farm, port: int) -> Iterator[psutil.Process]:
    """Run a control service over the farm."""
    environment = os.environ | {
        "STRANDLINE_DATA_DIR": str(directory),
        "STRANDLINE_LEDGER_URL": farm.url,
        "STRANDLINE_KAFKA_BOOTSTRAP": farm.bootstrap,
        "STRANDLINE_ELASTICSEARCH_URL": "http://127.0.0.1:1",
        "STRANDLINE_CONTROL_PORT": str(port),
        "STRANDLINE_STANDBYS": "0",
    }
    with (directory / "control.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline.services.control"], env=environment, stdout=log, stderr=log
        )
    try:
        for _ in range(600):
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(600)


def used_cores(process: psutil.Process, seconds: float) -> float:
    """Return the mean number of cores that the service and its processes use."""
    before, began = tree_cpu_s(process.pid), time.monotonic()
    time.sleep(seconds)
    return (tree_cpu_s(process.pid) - before) / (time.monotonic() - began)


class Requests:
    """Requests of a page, with their times and sizes."""

    def __init__(self, page: Page) -> None:
        self.sent: list[tuple[float, str]] = []
        self.foreign: set[str] = set()
        """Addresses of other hosts."""
        self._host = ""
        self.bytes: dict[str, int] = {}
        self._paths: dict[str, str] = {}
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.requestWillBeSent", self._note)
        session.on("Network.loadingFinished", self._finish)

    def _note(self, event: dict[str, Any]) -> None:
        scheme, _, host, path = event["request"]["url"].split("/", 3)
        self._host = self._host or host
        if host != self._host:
            self.foreign.add(f"{scheme}//{host}")
        self._paths[event["requestId"]] = path
        self.sent.append((time.monotonic(), path))

    def _finish(self, event: dict[str, Any]) -> None:
        path = self._paths.get(event["requestId"], "")
        self.bytes[path] = self.bytes.get(path, 0) + int(event["encodedDataLength"])

    @property
    def page_bytes(self) -> int:
        """Bytes of the files of the page."""
        return sum(size for path, size in self.bytes.items() if not path.startswith("v1/"))


def shown_number(page: Page, pattern: str) -> int:
    """Return the number that the page shows in a text. Raises if it never shows it."""
    shown = page.get_by_text(re.compile(pattern)).first
    shown.wait_for()
    found = re.search(pattern, shown.inner_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def confirm(what: str, shown: int, wanted: int) -> None:
    """Raise if the page doesn't show the whole load."""
    if shown != wanted:
        raise RuntimeError(f"the page shows {shown:,} {what}, and not {wanted:,}")
    print(f"the page shows {shown:,} {what}", flush=True)


def interact(page: Page, jobs: Sequence[str]) -> list[float]:
    """Use the page like a person, confirm that it shows the whole load, and return the milliseconds from each input to the next
    frame."""
    picked = random.Random(5)
    for turn, job in enumerate(picked.sample(list(jobs), 5)):
        page.goto("/#/")
        page.locator("article.job").first.wait_for()
        if turn == 0:
            confirm("jobs", shown_number(page, r"^\d+ of (\d+)$"), len(jobs))
        page.wait_for_timeout(1_000)
        page.keyboard.press("Control+k")
        page.locator("#palette-list li").first.wait_for()
        page.keyboard.type(job, delay=120)
        page.locator("#palette-list li").filter(has_text=job).first.wait_for()
        page.keyboard.press("Enter")
        page.locator("h1").filter(has_text=job).wait_for()
        page.wait_for_timeout(1_000)
        page.get_by_text("Other actions").click()
        page.get_by_role("button", name="Dark or light theme").click()
        page.get_by_label("Time zone").select_option("local")
    for address, field, what, pattern, wanted in (
        ("#/streams/sensor-0/devices", "Device contains", "devices", r"^1 to \d+ of ([\d,]+)$", DEVICES),
        (f"#/windows/{jobs[1]}", "Key contains", "open windows", r"^([\d,]+) windows are open", WINDOWS),
    ):
        page.goto(f"/{address}")
        page.locator("tbody tr").nth(50).wait_for()
        confirm(what, shown_number(page, pattern), wanted)
        page.get_by_label(field).click()
        page.keyboard.type("00123", delay=120)
        page.get_by_role("button", name="Search", exact=True).click()
        page.wait_for_timeout(3_000)
    page.goto(f"/#/dead-letters/{jobs[0]}")
    page.locator(".letters li a").first.wait_for()
    page.locator(".bars li b").first.wait_for()
    counts = page.locator(".bars li b").all_inner_texts()
    confirm("dead letters", sum(int(one.replace(",", "")) for one in counts), LETTERS)
    page.locator(".letters li a").first.click()
    page.locator(".bytes").first.wait_for()
    for view in ("Home", "Streams", "Operation", "Home", "Dead letters"):
        page.get_by_role("link", name=view, exact=True).first.click()
        page.wait_for_timeout(2_000)
    return [float(one) for one in page.evaluate("[...interactions.values()]")]


def follow_memory(page: Page, job: str, minutes: float) -> None:
    """Print the memory of the page each minute, after a garbage collection. It shows Home, and a job for some seconds of each
    minute."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.enable")
    page.goto("/#/")
    until_s, began_s = time.monotonic() + 60 * minutes, time.monotonic()
    sizes: list[tuple[float, float]] = []
    while True:
        page.locator("article.job").first.wait_for()
        session.send("HeapProfiler.collectGarbage")
        heap = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
        nodes = session.send("Memory.getDOMCounters")
        sizes.append(((time.monotonic() - began_s) / 60, heap))
        print(
            f"memory after {sizes[-1][0]:.1f} min: {heap:.2f} MB, {nodes['nodes']} nodes, {nodes['jsEventListeners']} listeners",
            flush=True,
        )
        if time.monotonic() >= until_s:
            break
        page.wait_for_timeout(45_000)
        page.goto(f"/#/jobs/{job}")
        page.wait_for_timeout(10_000)
        page.goto("/#/")
        page.wait_for_timeout(5_000)
    print(f"memory: {growth(sizes):+.2f} MB in an hour at this rate, without the first minute")


def growth(sizes: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line that fits the sizes best, in MB for each hour. `sizes`: minutes and MB. The first is ignored:
    the page then fills its caches."""
    rest = sizes[1:]
    if len(rest) < 2:
        return 0.0
    middle = sum(at for at, _ in rest) / len(rest)
    spread = sum((at - middle) ** 2 for at, _ in rest)
    return 60 * sum((at - middle) * size for at, size in rest) / spread


async def repeat(url: str, requests: Sequence[tuple[float, str]], pages: int, seconds: float) -> tuple[int, int]:
    """Send the recorded requests of one page for many pages, shifted in time. Each page follows events, and sends the tags of its
    answers. Return the numbers of requests and failures."""
    counts = [0, 0]
    spread = random.Random(7)

    async def one_page(client: httpx.AsyncClient) -> None:
        shift = spread.uniform(0, seconds)
        times = sorted(((at + shift) % seconds, path) for at, path in requests)
        began = time.monotonic()
        tags: dict[str, str] = {}
        waiting = {asyncio.create_task(follow(client))}
        for at, path in times:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            waiting.add(asyncio.create_task(ask(client, path, tags)))
        await asyncio.gather(*waiting)

    async def ask(client: httpx.AsyncClient, path: str, tags: dict[str, str]) -> None:
        counts[0] += 1
        try:
            answer = await client.get(path, headers={"If-None-Match": tags.get(path, "")})
            counts[1] += answer.status_code not in (200, 304)
            tags[path] = answer.headers.get("ETag", "")
        except httpx.HTTPError:
            counts[1] += 1

    async def follow(client: httpx.AsyncClient) -> None:
        counts[0] += 1
        try:
            async with (
                asyncio.timeout(seconds),
                client.stream("GET", "v1/events", headers={"Accept": "text/event-stream"}) as answer,
            ):
                counts[1] += answer.status_code != 200
                async for _ in answer.aiter_lines():
                    pass
        except TimeoutError:
            pass
        except httpx.HTTPError:
            counts[1] += 1

    limits = httpx.Limits(max_connections=6 * pages)
    headers = {"Accept-Encoding": "gzip"}
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, limits=limits, headers=headers) as client:
        await asyncio.gather(*(one_page(client) for _ in range(pages)))
    return counts[0], counts[1]


@contextmanager
def open_browser(url: str) -> Iterator[Page]:
    """Yield a page of Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(base_url=url, viewport={"width": 1280, "height": 860}).new_page()
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(_OBSERVER)
        yield page
        browser.close()


def measure(url: str, service: psutil.Process, farm: Farm, pages: int, seconds: float, memory_minutes: float) -> None:
    """Open the page, use it, and print the figures."""
    time.sleep(SETTLE_S)
    idle = used_cores(service, seconds / 2)
    print(f"control service, no page: {idle:.3f} cores", flush=True)
    with open_browser(url) as page:
        recorded = measure_page(page, service, idle, seconds)
        took = sorted(interact(page, farm.jobs))
        p95 = took[int(0.95 * len(took))] if took else 0.0
        print(
            f"interactions: {len(took)}, p50 {took[len(took) // 2]:.0f} ms, p95 {p95:.0f} ms, max {took[-1]:.0f} ms",
            flush=True,
        )
    before, began = tree_cpu_s(service.pid), time.monotonic()
    sent, failed = asyncio.run(repeat(url, recorded, pages, seconds))
    took_s = time.monotonic() - began
    cores = (tree_cpu_s(service.pid) - before) / took_s
    print(
        f"control service, {pages} pages: {cores - idle:.3f} cores above idle; {sent} requests in {took_s:.0f} s, "
        f"{failed} failed", flush=True,
    )  # fmt: skip
    if failed:
        raise RuntimeError(f"{failed} requests of {pages} pages failed")
    if memory_minutes:
        with open_browser(url) as page:
            follow_memory(page, farm.jobs[2], memory_minutes)


def measure_page(page: Page, service: psutil.Process, idle: float, seconds: float) -> list[tuple[float, str]]:
    """Open Home, print the figures of its start and of the service, and return its requests in `seconds`, with their times."""
    requests = Requests(page)
    page.goto("/")
    page.locator("article.job").first.wait_for()
    rows_ms = page.evaluate("performance.now()")
    page.wait_for_timeout(5_000)
    paints = page.evaluate("performance.getEntriesByType('paint').map((one) => [one.name, one.startTime])")
    print(f"first paint: {dict(paints)['first-contentful-paint']:.0f} ms; rows of jobs: {rows_ms:.0f} ms")
    print(
        f"files of the page: {requests.page_bytes / 1e3:.0f} kB; with data: {sum(requests.bytes.values()) / 1e3:.0f} kB; "
        f"requests to other hosts: {len(requests.foreign)}"
    )
    if requests.foreign:
        raise RuntimeError(f"the page sends requests to other hosts: {sorted(requests.foreign)}")
    began, at = time.monotonic(), len(requests.sent)
    cores = open_page_cores(service, page, seconds)
    recorded = [(sent - began, path) for sent, path in requests.sent[at:] if not path.startswith("v1/events")]
    print(
        f"control service, one page: {cores - idle:.3f} cores above idle; {len(recorded)} requests in {seconds:g} s",
        flush=True,
    )
    return recorded


def open_page_cores(service: psutil.Process, page: Page, seconds: float) -> float:
    """Return the mean number of cores that the service uses while the page runs. See `used_cores`."""
    before, began = tree_cpu_s(service.pid), time.monotonic()
    page.wait_for_timeout(1_000 * seconds)
    return (tree_cpu_s(service.pid) - before) / (time.monotonic() - began)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each measurement of cost")
    parser.add_argument("--slice-seconds", type=float, default=10.0, help="time between two slices of a job")
    parser.add_argument("--memory-minutes", type=float, default=5.0, help="duration of the measurement of memory")
    wanted = parser.parse_args()
    print(machine_text())
    with tempfile.TemporaryDirectory(prefix="strandline-console-") as name:
        directory = Path(name)
        stack = new_stack(directory / "stack", Console(stderr=True))
        try:
            farm = Farm(directory, stack.start_kafka(), wanted.jobs)
            began = time.monotonic()
            farm.write()
            print(
                f"{wanted.jobs} jobs, {DEVICES:,} devices, {LETTERS:,} dead letters, {WINDOWS:,} open windows; "
                f"written in {time.monotonic() - began:.0f} s", flush=True,
            )  # fmt: skip
            port = stack.ports.control
            with control_service(directory, farm, port) as service, LiveData(farm, wanted.slice_seconds) as live:
                url = f"http://127.0.0.1:{port}"
                measure(url, service, farm, wanted.pages, wanted.seconds, wanted.memory_minutes)
                if live.error is not None:
                    raise live.error
                print(f"live data: {live.slices:,} slices, {live.events} events")
            print(machine_text())
        finally:
            stack.stop()


if __name__ == "__main__":
    main()
