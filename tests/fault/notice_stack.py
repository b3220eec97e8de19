"""Trigger each condition of a notice on a real stack, and print each text that was received: `make try-notices [TEXTS=FILE]`.

`strandline up` starts Kafka, Elasticsearch, the control service and the gateways. A sender feeds two jobs. Then something is done
to the stack for each condition, and the program waits until a webhook and a mail server have received its message. It fails if
a message is missing, or if a text lacks its parts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from strandline.notices.conditions.table import CONDITIONS
from strandline.results.document import document_id
from strandline.services.certificates import make_dev_certificates
from strandline.services.embedded.addresses import read_stack
from tests.support.notices import HttpReceiver, Received, SmtpReceiver
from tests.support.ports import free_port, free_port_offset
from tests.support.waiting import stretched, wait_until

STRANDLINE = Path(sys.executable).with_name("strandline")
LIMIT_S = 180.0
DEVICES = ("T01", "T02")
"""Devices whose records are in different partitions."""
JOBS = """\
stream: wind
partitions: 2
key: device
retention: 7d
durability: spool
schema: {device: string, ts: timestamp, load: double}
---
pipeline: turbine-health
placement: own
input: {stream: wind}
event_time: {field: ts, delay: 1s, idle_timeout: 10s}
steps:
  - window: {name: secondly, tumbling: 1s, by: [device], aggregate: {n: count(*), peak: max(load)}}
    emit: [{elasticsearch: turbine-second}]
---
pipeline: night-watch
input: {stream: wind}
event_time: {field: ts, delay: 1s, idle_timeout: null}
on_error: crash
steps:
  - window: {name: secondly, tumbling: 1s, by: [device], aggregate: {n: count(*), peak: max(load)}}
    emit: [{elasticsearch: night-second}]
"""
BATCH = """\
pipeline: last-hour
input: {stream: wind, start: earliest, end: latest}
event_time: {field: ts, delay: 1s}
steps:
  - window: {name: minutely, tumbling: 1m, by: [device], aggregate: {n: count(*)}}
    emit: [{elasticsearch: last-hour-minute}]
"""
NOTICE = """\
notice: night
when:
  - job_failed
  - stopped_by_record
  - divergence
  - audit_differences
  - work_ended
  - restarts: {{times: 2, within: 10m}}
  - no_checkpoint: {{for: 20s}}
  - lag: {{above: 50, for: 5s}}
  - watermark_stuck: {{for: 15s}}
  - dead_letters: {{above: 5, within: 5m}}
  - retention_near: {{below: 100%}}
  - gateway_away: {{urls: ["{gateway}/readyz"], for: 5s}}
  - spool_fills: {{urls: ["{gateway}/metrics"], above: 1%}}
  - disk_full: {{above: 1%}}
  - expiry: {{within: 400d}}
  - results: {{of: turbine-health.secondly, where: "peak > 100"}}
group: {{by: problem, wait: 0s, every: 0s}}
cooldown: 0s
limit: 1000
about: "Runbook: https://wiki.example.org/strandline"
to:
  - webhook: {{url: "{webhook}", sign: {{secret: HOOK}}}}
  - mail: {{to: [night@example.org], from: s@example.org, server: localhost, port: {smtp}, user: ops, password: {{secret: MAIL}}}}
"""


@dataclass
class Sender:
    """Sends records of two devices, until it is closed."""

    url: str
    load: float = 20.0
    """Load of the first device."""
    silent: set[str] = field(default_factory=set)
    pause_s: float = 0.25
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, *records: Any) -> None:
        body = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records)
        headers = {"Content-Type": "application/x-ndjson"}
        httpx.post(f"{self.url}/v1/streams/wind/records", content=body, headers=headers, timeout=20)

    def _run(self) -> None:
        while not self.closing.wait(self.pause_s):
            ts = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            loads = {DEVICES[0]: self.load, DEVICES[1]: 20.0}
            try:
                self.send(*({"device": one, "ts": ts, "load": loads[one]} for one in DEVICES if one not in self.silent))
            except httpx.HTTPError:
                continue  # the gateway is stopped on purpose

    def close(self) -> None:
        self.closing.set()
        self._thread.join()


@dataclass
class Stage:
    """A running stack, its sender, and its receivers."""

    directory: Path
    environment: dict[str, str]
    http: HttpReceiver
    smtp: SmtpReceiver
    began_s: float = field(default_factory=time.monotonic)

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def run(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command of Strandline on this stack; return its output."""
        done = subprocess.run(
            [STRANDLINE, *arguments, "--data-dir", self.data_dir],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.directory,
            timeout=stretched(400),
        )
        assert code is None or done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text)
        return self.run("apply", name)

    def job(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.run("job", "status", name, "--json")))

    def wait_for_state(self, job: str, state: str) -> None:
        wait_until(lambda: self.job(job)["state"], lambda found: found == state, f"{job} {state}", LIMIT_S)

    def pids(self) -> dict[str, int]:
        return dict(json.loads((self.data_dir / "pids.json").read_text()))

    @contextmanager
    def stopped(self, part: str) -> Iterator[None]:
        """Stop a process of the stack, and continue it afterwards."""
        pid = self.pids()[part]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def messages(self, condition: str, kind: str = "problem") -> list[Received]:
        return [
            one
            for one in self.http.received
            if one.json["kind"] == kind and {row["condition"] for row in one.json["problems"]} == {condition}
        ]

    def wait_for(self, condition: str, kind: str = "problem", subject: str = "") -> None:
        """Wait until both receivers have a message about the condition."""

        def has_both() -> bool:
            found = [one.json["title"] for one in self.messages(condition, kind) if subject in one.json["title"]]
            mails = [_title(str(mail["Subject"])) for mail in self.smtp.received]
            return any(" ".join(title.split())[:100] in mail for title in found for mail in mails)

        wait_until(has_both, bool, f"a {kind} of {condition} received", LIMIT_S)
        print(f"{time.monotonic() - self.began_s:6.1f} s: {condition} {kind} received by webhook and mail", flush=True)


def _title(subject: str) -> str:
    return " ".join(subject.partition("] ")[2].split())


def _is_open(received: Received) -> bool:
    return bool(received.json["status"] == "open")


@contextmanager
def running_stage(directory: Path) -> Iterator[Stage]:
    certificates = make_dev_certificates(directory / "certificates", ["localhost"])
    (directory / "secrets").mkdir(mode=0o700)
    (directory / "secrets" / "MAIL").write_text("canary-of-mail")
    (directory / "secrets" / "HOOK").write_text("canary-of-hook")
    environment = os.environ | {
        "STRANDLINE_STANDBYS": "0",
        "STRANDLINE_SPOOL_BYTES_MAX": "1000000",
        "STRANDLINE_NOTICE_HOSTS": '["127.0.0.1", "localhost"]',
        "STRANDLINE_NOTICE_SECRETS_DIR": str(directory / "secrets"),
        "STRANDLINE_NOTICE_SECRET_HOSTS": '{"MAIL": ["localhost"]}',
        "SSL_CERT_FILE": str(certificates.ca),
    }
    with (
        HttpReceiver() as http,
        SmtpReceiver(certificates.server, certificates.server_key, ("ops", "canary-of-mail")) as smtp,
    ):
        stage = Stage(directory, environment, http, smtp)
        try:
            stage.run("up", "--detach", "--no-passwords", "--port-offset", str(free_port_offset()))
            yield stage
        finally:
            stage.run("down", code=None)


def trigger_all(stage: Stage) -> None:
    """Trigger each condition, and wait for its message."""
    addresses = read_stack(stage.data_dir)
    assert addresses is not None
    stage.apply("jobs.yaml", JOBS)
    sender = Sender(addresses.ingest_url)
    try:
        _trigger(stage, sender, addresses.elasticsearch_url, addresses.ingest_url)
    finally:
        sender.close()


def _trigger(stage: Stage, sender: Sender, elasticsearch: str, gateway: str) -> None:
    notice = NOTICE.format(gateway=gateway, webhook=stage.http.url, smtp=stage.smtp.port)
    print(stage.apply("night.yaml", notice))
    print(stage.run("notice", "test", "night"))
    stage.run("token", "create", "weather-station", "--write", "wind", "--expires", "3d")
    stage.wait_for("disk_full")
    stage.wait_for("expiry", subject="Token")
    for job in ("turbine-health", "night-watch"):
        wait_until(lambda job=job: _results(stage, job), lambda count: count > 10, f"results of {job}", LIMIT_S)  # type: ignore[misc]
    stage.wait_for("retention_near")

    sender.load = 131.5
    stage.wait_for("results", subject=DEVICES[0])
    sender.load = 20.0
    stage.wait_for("results", "resolved")

    sender.silent.add(DEVICES[1])
    stage.wait_for("watermark_stuck", subject="night-watch")
    sender.silent.clear()
    stage.wait_for("watermark_stuck", "resolved")

    sender.send(*(f'{{"device": "{DEVICES[0]}", "ts": "now", "load": {number}}}' for number in range(8)))
    stage.wait_for("stopped_by_record")
    stage.wait_for("dead_letters", subject="turbine-health")

    _change_a_result(elasticsearch, "night-second")
    stage.run("audit", "night-watch", code=None)
    stage.wait_for("audit_differences")
    stage.run("batch", "run", _written(stage, "batch.yaml", BATCH))
    stage.wait_for("work_ended", subject="Batch")

    with stage.stopped("elasticsearch"):
        stage.wait_for("lag", subject="turbine-health")
        stage.wait_for("no_checkpoint", subject="turbine-health")
    stage.wait_for("lag", "resolved")
    sender.pause_s = 0.02
    with stage.stopped("kafka"):
        stage.wait_for("spool_fills")
    sender.pause_s = 0.25
    stage.wait_for("spool_fills", "resolved")
    with stage.stopped(next(name for name in stage.pids() if "http" in name)):
        stage.wait_for("gateway_away")
    stage.wait_for("gateway_away", "resolved")

    stage.wait_for_state("turbine-health", "running")
    with _kills(stage, "runner-turbine-health"):
        stage.wait_for("restarts")
        stage.wait_for("job_failed", subject="turbine-health")
    _write_foreign_results(elasticsearch, "turbine-second")
    stage.run("job", "start", "turbine-health", code=None)
    stage.wait_for("divergence")
    with _second_control_service(stage):
        stage.wait_for("expiry", subject="certificate")
    # The second service has ended, so the state of its certificate is unknown.
    assert not stage.messages("expiry", "resolved")


@contextmanager
def _second_control_service(stage: Stage) -> Iterator[None]:
    """Run another control service, with a certificate. `up` starts none with TLS. The first one leads the notices."""
    addresses = read_stack(stage.data_dir)
    assert addresses is not None
    certificates = stage.directory / "certificates"
    settings = {
        "STRANDLINE_DATA_DIR": str(stage.directory / "second"),
        "STRANDLINE_LEDGER_URL": addresses.ledger_url,
        "STRANDLINE_KAFKA_BOOTSTRAP": addresses.kafka_bootstrap,
        "STRANDLINE_ELASTICSEARCH_URL": addresses.elasticsearch_url,
        "STRANDLINE_CONTROL_PORT": str(free_port()),
        "STRANDLINE_CONTROL_TLS_CERTIFICATE": str(certificates / "server.pem"),
        "STRANDLINE_CONTROL_TLS_KEY": str(certificates / "server-key.pem"),
    }
    with (stage.directory / "second.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline.services.control"],
            env=stage.environment | settings,
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(stretched(60))


def _written(stage: Stage, name: str, text: str) -> str:
    (stage.directory / name).write_text(text)
    return name


def _results(stage: Stage, job: str) -> int:
    return sum(stage.job(job)["counts"]["results"].values())


def _change_a_result(elasticsearch: str, alias: str) -> None:
    """Change a stored result, as another program could."""
    httpx.post(f"{elasticsearch}/{alias}/_refresh").raise_for_status()
    found = httpx.post(f"{elasticsearch}/{alias}/_search", json={"size": 1, "sort": ["window.start"]}).json()
    hit = found["hits"]["hits"][0]
    changed = httpx.post(f"{elasticsearch}/{hit['_index']}/_update/{hit['_id']}", json={"doc": {"peak": 99.0}})
    changed.raise_for_status()


def _write_foreign_results(elasticsearch: str, alias: str) -> None:
    """Store results of future windows before the job computes them, as another program could."""
    found = httpx.post(f"{elasticsearch}/{alias}/_search", json={"size": 1, "sort": [{"window.start": "desc"}]}).json()
    hit = found["hits"]["hits"][0]
    first_ms = int(time.time()) * 1_000 + 5_000
    for start_ms in range(first_ms, first_ms + 120_000, 1_000):
        start, end = (datetime.fromtimestamp(ms / 1_000, UTC) for ms in (start_ms, start_ms + 1_000))
        times = [one.isoformat(timespec="milliseconds").replace("+00:00", "Z") for one in (start, end)]
        document = hit["_source"] | {
            "@timestamp": times[1],
            "window": {"start": times[0], "end": times[1]},
            "device": DEVICES[0],
            "n": 999,
        }
        name = document_id("turbine-health", "secondly", start_ms, start_ms + 1_000, (DEVICES[0],))
        httpx.put(f"{elasticsearch}/{hit['_index']}/_create/{name}", json=document).raise_for_status()


@contextmanager
def _kills(stage: Stage, part: str) -> Iterator[None]:
    """Kill each process with this name as soon as it has started."""
    closing = threading.Event()

    def kill() -> None:
        killed: set[int] = set()
        while not closing.wait(0.5):
            pid = stage.pids().get(part)
            if pid is not None and pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def check_texts(stage: Stage) -> list[str]:
    """Return what is wrong with the received messages."""
    wrong = []
    for condition in CONDITIONS:
        found = stage.messages(condition)
        if not found:
            wrong.append(f"{condition}: no message")
        for one in found:
            wrong += [
                f"{condition}: no {part}"
                for part in ("WHAT: ", "WHEN: ", "AFFECTED: ", "DO:\n")
                if part not in one.json["text"]
            ]
    bodies = [one.body for one in stage.http.received] + [bytes(one) for one in stage.smtp.received]
    if any(b"canary" in body for body in bodies):
        wrong.append("a message contains a secret")
    if not all(stage.smtp.was_encrypted):
        wrong.append("a mail was not encrypted")
    return wrong


def write_texts(stage: Stage, file: Path) -> None:
    """Write the text of each received message, one of each condition and kind and title."""
    parts = ["# Received notices\n\nEach was received by the webhook (JSON) and by the mail server.\n"]
    mails = {_title(str(one["Subject"])): one for one in stage.smtp.received}
    for condition in CONDITIONS:
        for kind in ("problem", "resolved"):
            seen: set[str] = set()
            for one in stage.messages(condition, kind):
                title = one.json["title"]
                subject = one.json["problems"][0]["subject"]
                if subject in seen:
                    continue
                seen.add(subject)
                by_mail = any(" ".join(title.split())[:100] in mail for mail in mails)
                receivers = "webhook and mail" if by_mail else "webhook"
                parts.append(
                    f"## {condition}, {kind} (received by {receivers})\n\n    {title}\n\n```text\n{one.json['text']}\n```\n"
                )
    file.write_text("\n".join(parts))


def main() -> int:
    parser = argparse.ArgumentParser(description="Trigger each condition of a notice on a real stack.")
    parser.add_argument("--texts", type=Path, default=Path("build/notice-texts.md"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops all processes
    options.texts.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-notices-")))
        stage = stack.enter_context(running_stage(directory))
        try:
            trigger_all(stage)
        finally:
            write_texts(stage, options.texts)
        wrong = check_texts(stage)
    for finding in wrong:
        print(f"WRONG: {finding}")
    triggered = sum(bool(stage.messages(condition)) for condition in CONDITIONS)
    print(f"{triggered} of {len(CONDITIONS)} conditions were triggered and received by webhook and mail")
    print(f"{len(stage.http.received)} messages by webhook, {len(stage.smtp.received)} by mail; {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
