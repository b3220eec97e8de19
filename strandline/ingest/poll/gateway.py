"""The polling gateway: requests the URLs in the streams' documents, and persists each answer like every gateway.

`python -m strandline.ingest.poll.gateway` runs one. The streams' documents contain the URLs: `poll: {url:
"http://10.0.0.5/status", every: 30s}`.

A device can't be requested to repeat an earlier answer, so an answer that Kafka can't confirm goes to the spool. If a
device supports ETags or times of change, each state is stored once; otherwise each answer is a record.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from functools import partial

import structlog
from prometheus_client import Counter, Gauge

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.process import GatewayResources, open_resources, run_gateway, serve_health_pages
from strandline.ingest.poll.addresses import AllowedHosts
from strandline.ingest.poll.entry import GATEWAY
from strandline.ingest.poll.fetching import ByteBudget, HttpFetcher
from strandline.ingest.poll.polled_url import PolledUrl, PollingTools
from strandline.ingest.poll.secrets import NamedSecrets
from strandline.ingest.poll.settings import PollSettings
from strandline.ingest.poll.validators import Validators, name_of

logger = structlog.get_logger()

BYTES_HELD_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of all answers that are arriving."""
SAVE_EVERY_S = 1.0
VALIDATORS_FILE = "validators.json"


class Secrets(NamedSecrets):
    """Values that requests need and that documents don't contain."""

    def __init__(self, settings: PollSettings) -> None:
        super().__init__(
            settings.poll_secrets_dir, settings.poll_secrets, settings.poll_secret_hosts, "STRANDLINE_POLL"
        )


class PollGateway:
    """All URLs that the process polls."""

    def __init__(self, settings: PollSettings, resources: GatewayResources) -> None:
        self._resources = resources
        self._validators = Validators(resources.directory / VALIDATORS_FILE)
        registry = resources.metrics.registry
        self._requests = Counter(
            "strandline_poll_requests",
            "Requests to polled URLs, by outcome",
            ["stream", "outcome"],
            registry=registry,
        )
        self._failing = Gauge(
            "strandline_poll_failing", "Polled URLs whose last request failed", ["stream"], registry=registry
        )
        fetcher = HttpFetcher(
            AllowedHosts(settings.poll_hosts),
            ByteBudget(BYTES_HELD_MAX),
            settings.http_body_bytes_max,
            ssl.create_default_context(),
        )
        self._tools = PollingTools(
            fetcher,
            self._validators,
            Secrets(settings).value_for,
            asyncio.Semaphore(settings.poll_concurrency),
            self._count,
        )
        self._specs: dict[str, StreamSpec] = {}
        self._urls: dict[str, list[PolledUrl]] = {}
        """By stream."""
        self._ending: set[asyncio.Task[None]] = set()
        self._unsaved_reason = ""
        """Logged reason why the last validators could not be saved. Empty if they were saved."""
        resources.metrics.refresh_by(self._show_failing)

    def update_streams(self, streams: list[StreamSpec]) -> None:
        """Begin and end polling as the streams' documents require."""
        wanted = {spec.stream: spec for spec in streams if spec.poll}
        for name in [name for name, spec in self._specs.items() if wanted.get(name) != spec]:
            self._end(name)
        for name, spec in wanted.items():
            if name not in self._specs:
                self._begin(name, spec)
        self._validators.keep_only([name_of(name, poll) for name, spec in wanted.items() for poll in spec.poll or ()])

    async def save_validators(self) -> None:
        """Write changed validators repeatedly, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self._save()

    async def close(self) -> None:
        """Stop polling, and return when all answers are confirmed or refused."""
        for name in list(self._specs):
            self._end(name)
        if self._ending:
            await asyncio.wait(self._ending)
        await self._save()
        self._validators.close()

    async def _save(self) -> None:
        """Save the validators. If that fails, the next call tries again; a reason is logged once."""
        try:
            await self._validators.save()
        except Exception as error:  # the edge of the saving task: otherwise its end would not be noticed
            if repr(error) != self._unsaved_reason:
                self._unsaved_reason = repr(error)
                logger.exception(
                    "the ETags of polled URLs can't be saved", action="validators_not_kept", reason=repr(error)
                )
        else:
            self._unsaved_reason = ""

    def _begin(self, name: str, spec: StreamSpec) -> None:
        make = partial(PolledUrl, appender=self._resources.appender(spec, may_spool=True), tools=self._tools)
        self._specs[name] = spec
        self._urls[name] = [make(poll) for poll in spec.poll or ()]
        self._resources.metrics.of(name).is_open.set(1)
        logger.info("a stream is polled", action="poll_begun", stream=name, urls=len(self._urls[name]))

    def _end(self, name: str) -> None:
        del self._specs[name]
        self._resources.metrics.of(name).is_open.set(0)
        self._failing.labels(name).set(0)
        for url in self._urls.pop(name):
            ending = asyncio.create_task(url.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _count(self, stream: str, outcome: str) -> None:
        self._requests.labels(stream, outcome).inc()

    def _show_failing(self) -> None:
        for name, urls in self._urls.items():
            self._failing.labels(name).set(sum(url.failures > 0 for url in urls))


async def serve(settings: PollSettings) -> None:
    """Run a gateway until SIGTERM or SIGINT. Then stop polling, confirm the received answers, and return.

    Raises StackError if the port of the health endpoints is in use, and the errors of opening the ledger. Kafka may
    start later.
    """
    opening = open_resources(settings, GATEWAY, settings.poll_confirm_timeout_s)
    async with opening as resources, serve_health_pages(settings, GATEWAY, resources):
        gateway = PollGateway(settings, resources)
        saving = asyncio.create_task(gateway.save_validators())
        logger.info("the polling gateway runs", action="gateway_started", hosts=list(settings.poll_hosts))
        try:
            await resources.follow_streams(gateway.update_streams)
        finally:
            saving.cancel()
            await gateway.close()


if __name__ == "__main__":
    sys.exit(run_gateway(PollSettings, serve))
