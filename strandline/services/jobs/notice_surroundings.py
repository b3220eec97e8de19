"""Functions and values of the control service for the conditions and channels of notices."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path

from strandline.core.errors import NotFound
from strandline.core.times.durations import FOREVER_MS
from strandline.ingest.poll.fetching import ByteBudget, HttpFetcher
from strandline.ledger.roles import NoticeLedger
from strandline.log.kafka_status import KafkaStatus
from strandline.notices.channels.tools import ChannelTools
from strandline.notices.conditions.expiry import CONSEQUENCES
from strandline.notices.readings import take_readings
from strandline.notices.service import NoticeService
from strandline.notices.settings import NoticeSettings
from strandline.notices.view import JobFacts, Surroundings
from strandline.services.jobs.job_status import MISSING_PARTS, StreamRanges, job_status, present_pipeline
from strandline.services.jobs.notice_results import matching_results
from strandline.services.jobs.notice_watermarks import stuck_watermark

_KAFKA_WAIT_S = 2.0
_PAGE_TIMEOUT_S = 5.0
_PAGE_BYTES_MAX = 4 * 1024 * 1024


def notice_service(ledger: NoticeLedger, log: KafkaStatus, settings: NoticeSettings, service: str) -> NoticeService:
    """Return the notices of this control service. `service`: its name."""
    tools = ChannelTools(settings.notices_allowed, settings.secrets_of_notices, ssl.create_default_context())
    certificates = {name: path for name in CONSEQUENCES if (path := _file_of(settings, name)) is not None}
    surroundings = Surroundings(
        job_facts=partial(job_facts, ledger, log),
        stuck_watermark=partial(stuck_watermark, ledger, log),
        results=partial(matching_results, ledger, settings.elasticsearch_url),
        ask=partial(ask_page, tools),
        readings=partial(take_readings, settings.data_dir.resolve(), certificates),
        elasticsearch_url=settings.elasticsearch_url,
    )
    return NoticeService(ledger, service, tools, surroundings)


def _file_of(settings: NoticeSettings, name: str) -> Path | None:
    """Return the file in a setting, given by the name of its environment variable."""
    path: Path | None = getattr(settings, name.removeprefix("STRANDLINE_").lower())
    return path


def job_facts(ledger: NoticeLedger, log: KafkaStatus, job: str) -> JobFacts:
    """Return the job's lag, its retention, and the part of the retention that is left, for conditions of notices.

    A value is None if it is unknown: while Kafka doesn't respond, or if the job doesn't exist. Raises
    LedgerUnavailable.
    """
    try:
        row = ledger.job(job)
        status = job_status(ledger, StreamRanges(log, _KAFKA_WAIT_S), row)
    except NotFound:
        return JobFacts()
    retention_ms = None
    with suppress(*MISSING_PARTS):  # the status has a warning
        retention_ms = present_pipeline(ledger, row).retention_ms
    return JobFacts(
        lag_records=status.lag_records,
        retention_left_ms=None if status.rewind is None else status.rewind.retention_left_ms,
        retention_ms=None if retention_ms == FOREVER_MS else retention_ms,
    )


def ask_page(tools: ChannelTools, url: str) -> tuple[int, bytes]:
    """Send a GET request, and return the status and the body of the response. Raises StrandlineError if `tools` don't
    allow the URL, or without a complete response.
    """
    fetcher = HttpFetcher(tools.allowed, ByteBudget(_PAGE_BYTES_MAX), _PAGE_BYTES_MAX, tools.tls)
    reply = asyncio.run(fetcher.ask(url, (), _PAGE_TIMEOUT_S))
    return reply.status, reply.body
