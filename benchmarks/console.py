"""Speed and cost of the console with many jobs, dead letters, devices, and open windows.

    python -m benchmarks.console [--jobs 500] [--pages 50] [--seconds 60]

A control service runs over a real Kafka and a ledger in SQLite. Its jobs are rows of the ledger that another control service
leads, so none of them runs: the figures are the cost of looking at jobs. Chromium opens the page and uses it. Then the requests
of one page are recorded, and repeated for many pages at the same rate. Elasticsearch isn't started, so the view of results isn't
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
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
                ledger.begin_run(job, 1)
                ledger.move_job(job, JobState.RUNNING)
                ledger.claim_lease(job, "elsewhere", 10 * DAY_MS)
                with database.writing("add slices") as connection:
                    if number < STREAMS:
                        numbers = range(1, STEPS + 1)
                        connection.execute(sa.insert(slices), [vars(self._slice(job, stream, at)) for at in numbers])
                        connection.execute(
                            sa.insert(checkpoints), [self._checkpoint(job, stream, at) for at in numbers]
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

    def _offsets(self, stream: str, number: int) -> dict[str, dict[int, int]]:
        """The last slice reads all records, and the others none."""
        return {stream: self.ends[stream] if number == STEPS else dict.fromkeys(range(PARTITIONS), 0)}

    def _time_ms(self, number: int) -> int:
        return self.now_ms - (STEPS - number) * STEP_MS

    def _slice(self, job: str, stream: str, number: int) -> SliceRow:
        at_ms = self._time_ms(number)
        return SliceRow(
            job, number, epoch=1, version=1,
            offsets_first=self._offsets(stream, number - 1), offsets=self._offsets(stream, number), cut_time_ms=at_ms,
            watermark_ms=at_ms - 70_000, rule=EventTimeRule(10_000, None),
            reached={stream: dict.fromkeys(range(PARTITIONS), at_ms - 60_000)}, silence_ms={},
            kind=SliceKind.LIVE, status=SliceStatus.COMMITTED, planned_ms=at_ms - 900, stream_versions={stream: 1},
        )  # fmt: skip

    def _checkpoint(self, job: str, stream: str, number: int) -> dict[str, Any]:
        at_ms = self._time_ms(number)
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
        process.wait(60)


def used_cores(process: psutil.Process, seconds: float) -> float:
    """Return the mean number of cores that the service and its processes use."""
    before, began = tree_cpu_s(process.pid), time.monotonic()
    time.sleep(seconds)
    return (tree_cpu_s(process.pid) - before) / (time.monotonic() - began)


class Requests:
    """Requests of a page, with their times and sizes."""

    def __init__(self, page: Page) -> None:
        self.sent: list[tuple[float, str]] = []
        self.bytes: dict[str, int] = {}
        self._paths: dict[str, str] = {}
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.requestWillBeSent", self._note)
        session.on("Network.loadingFinished", self._finish)

    def _note(self, event: dict[str, Any]) -> None:
        path = event["request"]["url"].split("/", 3)[3]
        self._paths[event["requestId"]] = path
        self.sent.append((time.monotonic(), path))

    def _finish(self, event: dict[str, Any]) -> None:
        path = self._paths.get(event["requestId"], "")
        self.bytes[path] = self.bytes.get(path, 0) + int(event["encodedDataLength"])

    @property
    def page_bytes(self) -> int:
        """Bytes of the files of the page."""
        return sum(size for path, size in self.bytes.items() if not path.startswith("v1/"))


def interact(page: Page, jobs: Sequence[str]) -> list[float]:
    """Use the page like a person, and return the milliseconds from each input to the next frame."""
    picked = random.Random(5)
    for job in picked.sample(list(jobs), 5):
        page.goto("/#/")
        page.locator("article.job").first.wait_for(timeout=60_000)
        page.wait_for_timeout(1_000)
        page.keyboard.press("Control+k")
        page.locator("#palette-list li").first.wait_for()
        page.keyboard.type(job, delay=120)
        page.locator("#palette-list li").filter(has_text=job).first.wait_for(timeout=60_000)
        page.keyboard.press("Enter")
        page.locator("h1").filter(has_text=job).wait_for()
        page.wait_for_timeout(1_000)
        page.get_by_text("Other actions").click()
        page.get_by_role("button", name="Dark or light theme").click()
        page.get_by_label("Time zone").select_option("local")
    for address, field in (("#/streams/sensor-0/devices", "Device contains"), (f"#/windows/{jobs[1]}", "Key contains")):
        page.goto(f"/{address}")
        page.locator("tbody tr").nth(50).wait_for(timeout=60_000)
        page.get_by_label(field).click()
        page.keyboard.type("00123", delay=120)
        page.get_by_role("button", name="Search", exact=True).click()
        page.wait_for_timeout(3_000)
    page.goto(f"/#/dead-letters/{jobs[0]}")
    page.locator(".letters li a").first.wait_for(timeout=60_000)
    page.locator(".letters li a").first.click()
    page.locator(".bytes").first.wait_for()
    for view in ("Home", "Streams", "Activity", "Home", "Dead letters"):
        page.get_by_role("link", name=view, exact=True).first.click()
        page.wait_for_timeout(2_000)
    return [float(one) for one in page.evaluate("[...interactions.values()]")]


async def repeat(url: str, requests: Sequence[tuple[float, str]], pages: int, seconds: float) -> tuple[int, int]:
    """Send the recorded requests of one page for many pages, shifted in time. Return the numbers of requests and failures."""
    counts = [0, 0]
    spread = random.Random(7)

    async def one_page(client: httpx.AsyncClient) -> None:
        shift = spread.uniform(0, seconds)
        times = sorted(((at + shift) % seconds, path) for at, path in requests)
        began = time.monotonic()
        waiting = set()
        for at, path in times:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            waiting.add(asyncio.create_task(ask(client, path)))
        await asyncio.gather(*waiting)

    async def ask(client: httpx.AsyncClient, path: str) -> None:
        counts[0] += 1
        try:
            answer = await client.get(path)
            counts[1] += answer.status_code != 200
        except httpx.HTTPError:
            counts[1] += 1

    limits = httpx.Limits(max_connections=6 * pages)
    headers = {"Accept-Encoding": "gzip"}
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, limits=limits, headers=headers) as client:
        await asyncio.gather(*(one_page(client) for _ in range(pages)))
    return counts[0], counts[1]


def measure(url: str, service: psutil.Process, farm: Farm, pages: int, seconds: float) -> None:
    """Open the page, use it, and print the figures."""
    time.sleep(SETTLE_S)
    idle = used_cores(service, seconds / 2)
    print(f"control service, no page: {idle:.3f} cores", flush=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(base_url=url, viewport={"width": 1280, "height": 860}).new_page()
        page.add_init_script(_OBSERVER)
        requests = Requests(page)
        page.goto("/")
        page.locator("article.job").first.wait_for(timeout=60_000)
        rows_ms = page.evaluate("performance.now()")
        page.wait_for_timeout(5_000)
        paints = page.evaluate("performance.getEntriesByType('paint').map((one) => [one.name, one.startTime])")
        print(f"first paint: {dict(paints)['first-contentful-paint']:.0f} ms; rows of jobs: {rows_ms:.0f} ms")
        print(
            f"files of the page: {requests.page_bytes / 1e3:.0f} kB; with data: {sum(requests.bytes.values()) / 1e3:.0f} kB"
        )
        began, at = time.monotonic(), len(requests.sent)
        cores = open_page_cores(service, page, seconds)
        recorded = [(sent - began, path) for sent, path in requests.sent[at:] if path != "v1/events"]
        print(
            f"control service, one page: {cores - idle:.3f} cores above idle; {len(recorded)} requests in {seconds:g} s",
            flush=True,
        )
        took = sorted(interact(page, farm.jobs))
        p95 = took[int(0.95 * len(took))] if took else 0.0
        print(
            f"interactions: {len(took)}, p50 {took[len(took) // 2]:.0f} ms, p95 {p95:.0f} ms, max {took[-1]:.0f} ms",
            flush=True,
        )
        browser.close()
    before, began = tree_cpu_s(service.pid), time.monotonic()
    sent, failed = asyncio.run(repeat(url, recorded, pages, seconds))
    took_s = time.monotonic() - began
    cores = (tree_cpu_s(service.pid) - before) / took_s
    print(
        f"control service, {pages} pages: {cores - idle:.3f} cores above idle; {sent} requests in {took_s:.0f} s, {failed} failed"
    )


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
    parser.add_argument("--seconds", type=float, default=60.0)
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
            with control_service(directory, farm, port) as service:
                measure(f"http://127.0.0.1:{port}", service, farm, wanted.pages, wanted.seconds)
        finally:
            stack.stop()


if __name__ == "__main__":
    main()
