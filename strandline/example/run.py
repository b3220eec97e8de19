"""The example of `make run`: an embedded stack, the job of `turbines.yaml`, a simulated fleet, and a view of them."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from types import FrameType

import httpx
from rich.console import Console
from rich.live import Live

from strandline.core.documents import read_documents
from strandline.core.errors import PermanentError, StackError, TransientError
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.core.urls import without_credentials
from strandline.example.carriers import Carrier, HttpCarrier, MqttCarrier, UdpCarrier
from strandline.example.fleet import SITES, TICK_MS, Fleet
from strandline.example.sender import EventClock, FleetSender
from strandline.example.view import ResultLinks, account, links_shown, plain_line, render
from strandline.example.watch import Facts, ResultsReader, Watch
from strandline.ingest.registry import own_gateway
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.client import ControlClient, JsonObject, authorization
from strandline.services.embedded.addresses import STACK_FILE, STACK_USER, read_stack
from strandline.services.embedded.admin_token import read_admin_token
from strandline.services.embedded.passwords import (
    NETRC,
    PASSWORDS_DIR,
    choose_passwords,
    password_file,
    read_password,
)
from strandline.services.embedded.progress_display import ProgressDisplay
from strandline.services.embedded.stack import Stack, up
from strandline.services.processes.pids import PidFile
from strandline.services.trust import certificates_for

DOCUMENTS = "turbines.yaml"
DOCUMENTS_SHOWN = {"turbine-hour": 3, "turbine-minute": 3}
EVENT_START_AGO_MS = 30 * 86_400_000
"""Start of event time before now. Event time runs faster than the clock and must not overtake it, so the first run begins in
the past."""
SPEED_DEFAULT = 120.0
REFRESH_S = 0.5
LINE_EVERY_S = 5.0
POLL_S = 0.2
STALL_TIMEOUT_S = 300.0
"""Maximum time in seconds without progress of a job that the example waits for."""
CATCH_UP_TIMEOUT_S = 30.0
OPEN_TIMEOUT_S = 60.0
"""Maximum time in seconds for a gateway to open the stream."""
ARRIVE_TIMEOUT_S = 10.0
"""Time in seconds to wait for the job to read one more of the sent records."""


@dataclass(frozen=True)
class Servers:
    """The platform on which the example runs."""

    api_url: str
    ingest_url: str
    mqtt_url: str
    """Address of the broker that the MQTT bridge reads."""
    udp_host: str
    port_offset: int
    """Offset that is added to the ports of the stream document."""
    health_urls: Mapping[str, str]
    """Protocol -> address of its gateway's metrics."""
    elasticsearch_url: str
    option: str
    """Option of the command line for this platform: `--data-dir DIR` or `--url URL`."""
    logs: str
    """Place of the logs, for messages."""
    require_running: Callable[[], None]
    """Raises StackError if another command has stopped the stack."""
    token: str | None = None
    """Token for the API and the gateways. None if they require none."""
    elasticsearch_login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password of Elasticsearch. None if it requires no login."""
    curl_options: str = ""
    """Options with which a user's curl logs in to Elasticsearch."""
    mqtt_login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password at the broker. None if it requires no login."""
    password_file: Path | None = None
    """File with the password of Elasticsearch, for other clients. None if it requires no login."""


def run_example(
    settings: Settings,
    data_dir: Path,
    port_offset: int,
    speed: float,
    console: Console,
    seconds: float | None = None,
) -> int:
    """Start the embedded stack, show the example until Ctrl-C (SIGTERM, SIGHUP) or for `seconds`, and stop the stack. Return
    the exit code of `show_example`. Raises StrandlineError if a part fails, KeyboardInterrupt if interrupted before the stack
    was up. In every case, no process runs afterwards."""
    _require_own_servers(data_dir)
    _require_no_running_stack(data_dir)
    with stop_signals() as stop:
        passwords = choose_passwords(None, settings, data_dir)
        stack = up(settings, data_dir, port_offset, False, console, passwords=passwords)
        password, mqtt_password = (read_password(stack.addresses, server) for server in ("elasticsearch", "mqtt"))
        try:
            servers = Servers(
                stack.addresses.api_url,
                stack.addresses.ingest_url,
                stack.addresses.mqtt_url,
                "127.0.0.1",
                port_offset,
                {
                    name: f"http://127.0.0.1:{stack.ports.gateways[own_gateway(name).health_port.setting]}"
                    for name in ("mqtt", "udp")
                },
                stack.addresses.elasticsearch_url,
                option=f"--data-dir {stack.data_dir}",
                logs=f"{stack.data_dir / 'logs'}",
                require_running=partial(_require_running, stack),
                token=read_admin_token(stack.data_dir),
                elasticsearch_login=(STACK_USER, password) if password is not None else None,
                curl_options=_netrc_option(stack.data_dir) if password is not None else "",
                mqtt_login=(STACK_USER, mqtt_password) if mqtt_password is not None else None,
                password_file=password_file(stack.addresses, "elasticsearch") if password is not None else None,
            )
            code = show_example(servers, speed, console, seconds, stop)
        finally:
            stack.stop()
    say(console, f"everything is stopped; the next start continues with the data in {data_dir}")
    return code


def _netrc_option(data_dir: Path) -> str:
    return f"--netrc-file {shlex.quote(str(data_dir / PASSWORDS_DIR / NETRC))} "


def _require_own_servers(data_dir: Path) -> None:
    """Raise StackError if the stack uses external servers, because the example writes made-up records."""
    if (data_dir / STACK_FILE).exists() and read_stack(data_dir).outside:
        raise StackError(f"the stack in {data_dir} uses external servers; pass another --data-dir to the example")


def _require_no_running_stack(data_dir: Path) -> None:
    """Raise StackError if another command started the stack, because the example stops its stack at the end."""
    if "watcher" in PidFile(data_dir).alive():
        raise StackError(
            f"a stack already runs in {data_dir}, but the example stops its stack at the end; run strandline "
            f"down --data-dir {data_dir} first, or pass another --data-dir and --port-offset to the example"
        )


def _require_running(stack: Stack) -> None:
    if not stack.follow():
        raise StackError("the stack was stopped by another command")


def show_example(servers: Servers, speed: float, console: Console, seconds: float | None, stop: StopSignals) -> int:
    """Run the example on a running platform, until stopped or for `seconds`, and return the exit code.

    1. Apply the documents. Wait until the job has read the log to its end, and until the gateways accept records for the
       stream.
    2. Start the fleet at the event time at which it stopped.
    3. Show the progress until stopped.
    4. Stop the fleet, let the job read the remaining records, and print the account.

    The code is 1 only if `seconds` are over and no result is in Elasticsearch. Raises StrandlineError if a part fails.
    """
    text = example_text()
    pipeline = example_pipeline(text)
    progress = ProgressDisplay(console)
    with (
        ControlClient(servers.api_url, timeout_s=10.0, token=servers.token) as control,
        closing(ResultsReader(servers.elasticsearch_url, DOCUMENTS_SHOWN, servers.elasticsearch_login)) as results,
    ):
        job = _start_job(control, text, pipeline.pipeline, servers, progress, stop)
        stream = example_stream(text)
        with progress.step(
            "waiting for the gateways to open the stream", "the gateways accept records by HTTP, MQTT, and UDP"
        ):
            wait_until_open(servers.health_urls, stream.stream, stop.requested, servers.token)
        if stop.requested.is_set():
            return 0 if seconds is None else 1
        now_ms = time.time_ns() // 1_000_000
        clock = EventClock(event_start_ms(job, now_ms), now_ms, speed)
        sender = FleetSender(_carriers(servers, stream), Fleet(), clock)
        watch = Watch(control, results, sender, job)
        look = partial(_look, servers, watch, sender)
        sender.start()
        try:
            _show_until(console, _links(servers, pipeline, speed), look, seconds, stop.requested)
        finally:
            sender.stop()
        with progress.step("letting the job read the rest (Ctrl-C again: don't wait)", "the fleet is stopped"):
            # After Ctrl-C, this limits the wait; a test needs the complete account.
            timeout_s = CATCH_UP_TIMEOUT_S if seconds is None else math.inf
            _wait_until_arrived(watch, stop.hurry)
            job = wait_until_caught_up(
                control, job["name"], stop.hurry, stall_timeout_s=STALL_TIMEOUT_S, timeout_s=timeout_s
            )
        facts = watch.look()
    for line in account(facts, is_caught_up(job)):
        say(console, line)
    if seconds is not None and not has_results(facts):
        say(console, f"no result arrived within {seconds:g} s; see {servers.logs}")
        return 1
    return 0


class StopSignals:
    """Signals of the user: the first one stops the example, the second one stops its waiting."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.hurry = threading.Event()

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        (self.hurry if self.requested.is_set() else self.requested).set()


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Record the signals to stop, instead of interrupting the running code. While the stack starts, `up` handles them."""
    stop = StopSignals()
    before = {
        number: signal.signal(number, stop.on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(console: Console, line: str) -> None:
    """Print one line unchanged: not wrapped, not coloured, not read as markup."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


def example_text() -> bytes:
    """Return the documents of the example. They are part of the package, so the working directory doesn't matter."""
    return resources.files(__package__).joinpath(DOCUMENTS).read_bytes()


def example_pipeline(text: bytes) -> PipelineSpec:
    """Return the example's pipeline."""
    documents = read_documents(text, DOCUMENTS)
    return PipelineSpec.parse(next(document for document in documents if document.kind == "pipeline"))


def example_stream(text: bytes) -> StreamSpec:
    """Return the example's stream."""
    documents = read_documents(text, DOCUMENTS)
    return StreamSpec.parse(next(document for document in documents if document.kind == "stream"))


def _carriers(servers: Servers, stream: StreamSpec) -> dict[str, Carrier]:
    """Return site -> transport of its turbines' reports: two by HTTP, one by MQTT, one by UDP."""
    assert stream.udp is not None, "the example's stream has a UDP port"
    http = HttpCarrier(servers.ingest_url, stream.stream, token=servers.token)
    carriers: list[Carrier] = [
        http,
        http,
        MqttCarrier(servers.mqtt_url, servers.mqtt_login),
        UdpCarrier(servers.udp_host, stream.udp.port + servers.port_offset),
    ]
    return dict(zip(SITES, carriers, strict=True))


def wait_until_open(
    health_urls: Mapping[str, str], stream: str, enough: threading.Event, token: str | None = None
) -> None:
    """Return when every gateway accepts records for the stream, or when `enough` is set.

    Raises TransientError after OPEN_TIMEOUT_S. Records that are published earlier reach no stream.
    """
    deadline_s = time.monotonic() + OPEN_TIMEOUT_S
    for protocol, url in health_urls.items():
        line = f'strandline_ingest_open{{protocol="{protocol}",stream="{stream}"}} 1.0'
        while line not in _page(f"{url}/metrics", token):
            if time.monotonic() > deadline_s:
                raise TransientError(
                    f"the gateway for {protocol} at {url} has not opened stream {stream} within {OPEN_TIMEOUT_S:g} s; "
                    f"its log says why"
                )
            if enough.wait(POLL_S):
                return


def _page(url: str, token: str | None) -> str:
    try:
        verify = certificates_for(url, None)
        return httpx.get(url, timeout=5.0, trust_env=False, verify=verify, headers=authorization(token)).text
    except httpx.TransportError:
        return ""


def _wait_until_arrived(watch: Watch, enough: threading.Event) -> None:
    """Return when the job has read as many records as were sent, or when none has arrived for a while. A broker may still hold
    some records, and UDP may have lost some."""
    records, moved_s = -1, time.monotonic()
    while time.monotonic() - moved_s < ARRIVE_TIMEOUT_S:
        facts = watch.look()
        if facts.counts["records"] >= facts.sent.sent:
            return
        if facts.counts["records"] != records:
            records, moved_s = facts.counts["records"], time.monotonic()
        if enough.wait(POLL_S):
            return


def event_start_ms(job: JsonObject, now_ms: int) -> int:
    """Return the fleet's first event time: a month ago, or after all events of the job if they are later, so that no
    report is late. It is never in the future.
    """
    seen_ms: list[int] = [ms for ms in (job["latest_event_ms"], job["watermark_ms"]) if ms is not None]
    return min(now_ms, max([now_ms - EVENT_START_AGO_MS, *(ms + TICK_MS for ms in seen_ms)]))


def has_results(facts: Facts) -> bool:
    """Return True if results of this run are in Elasticsearch."""
    return sum(facts.counts["results"].values()) > 0 and any(facts.documents.values())


def _start_job(
    control: ControlClient, text: bytes, name: str, servers: Servers, progress: ProgressDisplay, stop: StopSignals
) -> JsonObject:
    with progress.step("applying the example", f"stream and job of {DOCUMENTS} are registered"):
        control.apply(text, DOCUMENTS)
        control.order(name, "start")
    with progress.step(f"starting job {name}", f"job {name} runs"):
        # Caught up, so that the fleet continues after the last event in the log, not only after the last processed event.
        job = wait_until_caught_up(control, name, stop.requested, stall_timeout_s=STALL_TIMEOUT_S)
        if not is_caught_up(job) and not stop.requested.is_set():
            raise TransientError(
                f"job {name} is {job['state']}, {job['lag_records']} records behind, and has made no progress for "
                f"{STALL_TIMEOUT_S:.0f} s; look into {servers.logs}"
            )
        return job


def wait_until_caught_up(
    control: ControlClient, name: str, enough: threading.Event, *, stall_timeout_s: float, timeout_s: float = math.inf
) -> JsonObject:
    """Return the job when it runs and has read the whole log. Return its current state when `enough` is set, after `timeout_s`,
    and after `stall_timeout_s` without progress. Raises PermanentError if the job has failed."""
    began_s = moved_s = time.monotonic()
    position: tuple[object, ...] = ()
    while True:
        job = control.job(name)
        if job["state"] == "failed":
            raise PermanentError(f"job {name} has failed: {job['message']}")
        if (now := (job["state"], job["epoch"], job["slice"])) != position:
            position, moved_s = now, time.monotonic()
        is_over = time.monotonic() > min(began_s + timeout_s, moved_s + stall_timeout_s)
        if is_caught_up(job) or is_over or enough.wait(POLL_S):
            return job


def is_caught_up(job: JsonObject) -> bool:
    """Return True if the job runs and has read the whole log."""
    return bool(job["state"] == "running" and job["lag_records"] == 0)


def _look(servers: Servers, watch: Watch, sender: FleetSender) -> Facts:
    """Return the state of the example now. Raises StrandlineError if the job has failed, a part refuses permanently, or
    another command has stopped the stack.
    """
    servers.require_running()
    facts = watch.look()
    if facts.job is not None:
        if facts.job["state"] == "failed":
            raise PermanentError(f"job {facts.job['name']} has failed: {facts.job['message']}; see {servers.logs}")
        if facts.job["watermark_ms"] is not None:
            sender.allow_late()
    return facts


def _show_until(
    console: Console,
    links: ResultLinks,
    look: Callable[[], Facts],
    seconds: float | None,
    requested: threading.Event,
) -> None:
    """Show the state of the example until `requested` is set or `seconds` are over."""
    for line in links_shown(links):
        say(console, line)
    deadline = None if seconds is None else time.monotonic() + seconds
    if console.is_terminal:
        _show_live(console, links, look, requested, deadline)
    else:
        _print_lines(console, look, requested, deadline)


def _show_live(
    console: Console, links: ResultLinks, look: Callable[[], Facts], requested: threading.Event, deadline: float | None
) -> None:
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not requested.is_set() and not _is_over(deadline):
            live.update(render(look(), links), refresh=True)
            requested.wait(REFRESH_S)


def _print_lines(
    console: Console, look: Callable[[], Facts], requested: threading.Event, deadline: float | None
) -> None:
    next_line_s = time.monotonic() + LINE_EVERY_S
    while not requested.is_set() and not _is_over(deadline):
        facts = look()
        if time.monotonic() >= next_line_s:
            say(console, plain_line(facts))
            next_line_s += LINE_EVERY_S
        requested.wait(REFRESH_S)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _links(servers: Servers, pipeline: PipelineSpec, speed: float) -> ResultLinks:
    address = without_credentials(servers.elasticsearch_url)
    return ResultLinks(
        console=f"{servers.api_url}/",
        api_docs=f"{servers.api_url}/openapi.json",
        search=f"curl {servers.curl_options}'{address}/turbine-hour/_search?sort=@timestamp:desc&pretty'",
        login=_login_hint(address, servers.password_file),
        job_status=f"{_command()} job status {pipeline.pipeline} {servers.option}",
        dead_letters=f"{_command()} dead-letters list {pipeline.pipeline} {servers.option}",
        logs=servers.logs,
        speed=speed,
        delay_ms=pipeline.reads[0].event_time.delay,
    )


def _login_hint(address: str, password_file: Path | None) -> str:
    """Return a hint for logins of other programs to Elasticsearch; empty if it requires no login."""
    if password_file is None:
        return ""
    return (
        f"{address} accepts user {STACK_USER} with the password in {password_file}; "
        "STRANDLINE_EMBEDDED_PASSWORDS=false make run starts it without passwords"
    )


def _command() -> str:
    """Return the command line's path from here."""
    command = Path(sys.executable).parent / "strandline"
    try:
        return str(command.relative_to(os.getcwd()))
    except ValueError:
        return str(command)
