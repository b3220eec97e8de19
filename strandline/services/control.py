"""The control service: `python -m strandline.services.control`. It runs the REST API and the supervisor of the runners.

Several services can share a ledger. Each locks its own data directory. A lease in the ledger determines which service leads a
job.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast

import structlog
import uvicorn
from pydantic import field_validator
from starlette.types import ASGIApp

from strandline.access.exposure import require_closed
from strandline.access.oidc_client import oidc_client
from strandline.access.open_authenticator import open_authenticator
from strandline.core.errors import InvalidSettings, StackError, StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings, make_data_dir
from strandline.core.urls import without_credentials
from strandline.ingest.gateway.serving.tls_handshakes import TlsHandshaker, server_tls
from strandline.ledger.database import without_secrets
from strandline.ledger.ledger import Ledger
from strandline.log.admin import KafkaAdmin
from strandline.log.kafka_status import KafkaStatus
from strandline.log.topics import Topics
from strandline.notices.settings import NoticeSettings
from strandline.processing.slices.old_slices import SlicesKept
from strandline.processing.source.followed.reading import SourceReader
from strandline.results.generations import discard_generation, newest_generation
from strandline.services.jobs.apply_documents import DocumentApplier, check_documents, ensure_templates
from strandline.services.jobs.dead_letters import DeadLetters
from strandline.services.jobs.job_lifecycle import JobLifecycle
from strandline.services.jobs.notice_surroundings import notice_service
from strandline.services.jobs.record_relay import RecordRelay
from strandline.services.jobs.sending import KnownGateways
from strandline.services.jobs.shown_settings import setting_views
from strandline.services.processes.file_lock import held_alone
from strandline.services.processes.limited_work import LimitedWork
from strandline.services.rest.api import create_app
from strandline.services.rest.dependencies import Dependencies
from strandline.services.rest.guards.bounded_http import BoundedHttp
from strandline.services.supervision.audit_jobs import AuditJobs
from strandline.services.supervision.backfill_jobs import BackfillJobs
from strandline.services.supervision.dead_letter_copies import DeadLetterCopies
from strandline.services.supervision.external_services import TIMEOUT_S, ExternalServices, unavailable_store
from strandline.services.supervision.housekeeping import Housekeeping
from strandline.services.supervision.leadership import ServiceIdentity, is_on_this_machine, new_service_name
from strandline.services.supervision.lookups.follower import LookupFollower
from strandline.services.supervision.old_slices import SliceCleanup
from strandline.services.supervision.placement import pool_placement
from strandline.services.supervision.pools import Pools
from strandline.services.supervision.supervision_times import SupervisionTimes
from strandline.services.supervision.supervisor import Supervisor

logger = structlog.get_logger()

LOCK_FILE = "control.lock"
_LIMITED_MODULES = (
    "strandline.services.jobs.apply_documents",
    "strandline.services.jobs.document_forms",
    "strandline.services.jobs.previews",
    "strandline.services.jobs.samples",
    "strandline.services.jobs.devices",
    "strandline.services.jobs.lookup_rows",
    "strandline.services.jobs.record_search",
    "strandline.processing.formats.undeclared",
    "strandline.processing.formats.proposals",
)
"""Modules of the functions that run with limits."""
CHANGES_TIMEOUT_S = 30.0
"""Maximum time in seconds for Kafka to delete a topic."""
REQUESTS_END_S = 3
"""Maximum time in seconds for running requests when the service ends."""


class ControlSettings(NoticeSettings):
    """Settings of the control service, and all other settings."""

    control_names: tuple[str, ...] = ()
    """JSON list of `Host` names under which the REST API and its `/metrics` answer, in addition to `localhost`, `127.0.0.1`,
    `::1`, and `CONTROL_HOST`. Other names get 421. `/healthz` and `/readyz` answer under any name."""
    control_trusted_proxies: tuple[str, ...] = ()
    """JSON list of addresses and networks of proxies in front of the REST API. The audit log uses the `X-Forwarded-For` header of
    these proxies only."""
    port_offset: int = 0
    """Number that the UDP and TCP gateways add to every port in a stream document."""

    @field_validator("control_trusted_proxies")
    @classmethod
    def _are_networks(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for number, entry in enumerate(entries, 1):
            try:
                ip_network(entry)
            except ValueError:  # its message contains the entry, and no message may contain the value of a setting
                raise ValueError(f"entry {number} is neither an IP address nor a network without host bits") from None
        return entries


def serve(settings: ControlSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises StrandlineError if the service can't start.

    1. Check that strangers can't use the service. Lock the data directory and bind the port: a second service ends here, before
       it changes any runner.
    2. Open the ledger.
    3. Serve. The supervisor starts and ends with the app.
    """
    require_closed(settings, settings.control_host, "the REST API", "STRANDLINE_CONTROL_HOST", asks=True)
    make_data_dir(settings.data_dir)
    with _only_one(settings.data_dir) as name, _listen(settings) as listener:
        ledger = Ledger.open(settings.ledger_url)
        authenticator = open_authenticator(settings, ledger)
        try:
            names = (settings.control_host, *settings.control_names)
            app = create_app(
                _dependencies(settings, ledger, name),
                names,
                authenticator,
                settings.record_bytes_max,
                oidc_client(settings),
            )
            server = uvicorn.Server(_server_config(app, settings))
            app.state.is_ending = lambda: server.should_exit
            logger.info(
                "control service",
                action="serve",
                name=name,
                port=settings.control_port,
                data_dir=str(settings.data_dir),
            )
            with Housekeeping(settings, ledger):
                server.run(sockets=[listener])
        finally:
            if authenticator is not None:
                authenticator.close()
            ledger.close()


def _server_config(app: ASGIApp, settings: ControlSettings) -> uvicorn.Config:
    """Return the configuration of the HTTP server. Raises InvalidSettings if a certificate can't be used.

    A client can send any `X-Forwarded-For`. uvicorn uses this header by default if the client connects from loopback,
    or if FORWARDED_ALLOW_IPS is set. Here it counts only from the proxies in the settings.
    """
    proxies = list(settings.control_trusted_proxies)
    return uvicorn.Config(
        app,
        http=_protocols(settings),
        loop="uvloop",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=REQUESTS_END_S,
    )


def _protocols(settings: ControlSettings) -> type[asyncio.Protocol]:
    """Return the factory of the protocol of each connection: uvicorn's with limits, after a TLS handshake if there is a
    certificate. Raises InvalidSettings if it can't be used.
    """
    tls = server_tls(
        settings.control_tls_certificate,
        settings.control_tls_key,
        settings.control_tls_client_ca,
        "STRANDLINE_CONTROL_TLS",
    )
    if tls is None:
        return BoundedHttp
    door = TlsHandshaker(tls)

    def protocol(**options: Any) -> asyncio.Protocol:
        return door.before(partial(BoundedHttp, **options))

    return cast(type[asyncio.Protocol], protocol)


def _dependencies(settings: ControlSettings, ledger: Ledger, name: str) -> Dependencies:
    """Create the parts of the service from its settings, without starting them. `name`: name of this service in the ledger."""
    topics = Topics(
        settings.kafka_bootstrap,
        replication=settings.stream_replication,
        record_bytes_max=settings.record_bytes_max,
    )
    log = KafkaStatus(settings.kafka_bootstrap)

    def log_starts(stream: str) -> dict[int, int]:
        return log.range(stream).offset_first

    changing = KafkaAdmin(settings.kafka_bootstrap, timeout_s=CHANGES_TIMEOUT_S, changes_topics=True)
    lifecycle = JobLifecycle(ledger, changing, settings.elasticsearch_url)
    sources = SourceReader(
        ledger,
        KafkaAdmin(settings.kafka_bootstrap, timeout_s=CHANGES_TIMEOUT_S),
        _sql_sources,
        without_secrets(settings.ledger_url),
    )
    limited = LimitedWork(_LIMITED_MODULES, settings.check_bytes_max, settings.check_s)
    limited.start()
    applier = DocumentApplier(
        ledger,
        topics,
        lambda pipeline: ensure_templates(settings.elasticsearch_url, pipeline, ledger.generation_of(pipeline.job)),
        log_starts,
        lifecycle.origin,
        sources,
        partial(limited.run, "check", check_documents),
    )
    service = ServiceIdentity(name, _address(settings), str(settings.data_dir.resolve()))
    external_services = ExternalServices(
        KafkaAdmin(settings.kafka_bootstrap, timeout_s=TIMEOUT_S),
        settings.elasticsearch_url,
        settings.schema_registry_url,
    )
    supervisor = Supervisor(
        ledger,
        settings.data_dir,
        service=service,
        times=SupervisionTimes(lease_s=settings.lease_s),
        standbys=settings.standbys,
        external_services_up=external_services.are_up,
        pools=_pools(settings),
        placement=pool_placement(ledger, [one.strip() for one in settings.own_runners.split(",")]),
    )
    backfills = BackfillJobs(
        ledger,
        settings.data_dir,
        supervisor.leads,
        log_starts,
        partial(discard_generation, settings.elasticsearch_url),
        external_services_up=external_services.are_up,
        newest_generation=partial(newest_generation, settings.elasticsearch_url),
    )
    kept = SlicesKept(settings.slices_kept_days_min, settings.slices_kept_days_max)
    old_slices = SliceCleanup(ledger, supervisor.leads, log_starts, kept)
    copies = DeadLetterCopies(ledger, supervisor.leads, log, settings.elasticsearch_url)
    audits = AuditJobs(ledger, settings.data_dir)
    dead_letters = DeadLetters(ledger, log, settings.kafka_bootstrap, settings.record_bytes_max)
    return Dependencies(
        ledger,
        log,
        applier,
        supervisor,
        audits,
        backfills,
        old_slices,
        copies,
        lifecycle,
        dead_letters,
        LookupFollower(ledger, sources, name),
        notice_service(ledger, log, settings, name),
        settings.elasticsearch_url,
        settings.data_dir,
        partial(unavailable_store, settings=settings),
        requires_token=settings.auth != "none",
        run_limited=limited.run,
        close_limited=limited.close,
        relay=RecordRelay(settings.ingest_url, settings.ingest_ca_file),
        gateways=_gateways(settings),
        kibana_url=_kibana_url(settings),
        settings=cache(partial(setting_views, settings)),
    )


def _kibana_url(settings: ControlSettings) -> str | None:
    """Return the address of Kibana that browsers get. Raises InvalidSettings."""
    url = settings.kibana_url
    if url is not None and not url.startswith(("http://", "https://")):
        raise InvalidSettings(
            "STRANDLINE_KIBANA_URL must begin with http:// or https://, as https://kibana.example.org"
        )
    return None if url is None else without_credentials(url).rstrip("/")


def _gateways(settings: ControlSettings) -> KnownGateways:
    """Return the addresses of gateways that the console shows."""
    urls = dict(settings.sender_urls)
    if settings.ingest_url is not None:
        urls = {"http": settings.ingest_url} | urls
    return KnownGateways(urls, settings.port_offset, can_relay=settings.ingest_url is not None)


def _pools(settings: ControlSettings) -> Pools | None:
    """Return the pools of this service. None if each job has its own runner."""
    if settings.jobs_per_pool == 1:
        return None
    return Pools(settings.data_dir, settings.jobs_per_pool, has_spare=settings.standbys > 0)


def _sql_sources() -> dict[str, str]:
    """Return the databases that lookups can query, from the current environment or its file."""
    return {name: url.get_secret_value() for name, url in Settings.read().sql_sources.items()}


def _address(settings: Settings) -> str:
    """Return the URL of the REST API. If it listens for other machines, the URL is valid there."""
    host = settings.control_host
    if host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not listened on
        host = socket.gethostname()
    scheme = "http" if settings.control_tls_certificate is None else "https"
    return (
        f"{scheme}://[{host}]:{settings.control_port}" if ":" in host else f"{scheme}://{host}:{settings.control_port}"
    )


@contextmanager
def _only_one(data_dir: Path) -> Iterator[str]:
    """Lock the data directory. Yield the name of this service, which the lock file contains. Only one process at a time has the
    name, because it belongs to a directory on a machine. So a restarted service can take back its own leases immediately."""
    refusal = f"another control service uses {data_dir}; stop it first, or pass another data directory"
    with held_alone(data_dir / LOCK_FILE, refusal) as lock:
        lock.seek(0)
        name = lock.read().strip()
        if not is_on_this_machine(name):  # new, or a copy of a directory of another machine
            name = new_service_name()
            lock.truncate(0)
            lock.write(name)
            lock.flush()
        yield name


@contextmanager
def _listen(settings: Settings) -> Iterator[socket.socket]:
    host, port = settings.control_host, settings.control_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise StackError(
                f"can't listen on {host} port {port}: {os.strerror(error.errno or 0)}; "
                "free the port or set STRANDLINE_CONTROL_PORT"
            ) from error
        yield listener


def main() -> None:
    """Main function of the process. Exit codes: 0 after a clean end, 1 with a message if the service can't start."""
    try:
        settings = ControlSettings.read()
    except InvalidSettings as error:
        print(f"strandline: {error}", file=sys.stderr)
        sys.exit(1)
    configure_logs(as_json=settings.log_json)
    for number in (signal.SIGTERM, signal.SIGINT):
        # While it serves, uvicorn has its own handlers. After a clean end, it raises the signal again.
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        serve(settings)
    except StrandlineError as error:
        logger.error(str(error), action="serve", code=error.code)
        sys.exit(1)


if __name__ == "__main__":
    main()
