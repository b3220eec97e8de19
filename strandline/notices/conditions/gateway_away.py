"""Condition `gateway_away`: a gateway, or another endpoint, doesn't respond."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path
from strandline.core.errors import InvalidSettings, StrandlineError
from strandline.core.streams.entrances import problem_of_url
from strandline.ingest.poll.addresses import NotAllowed
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import View, show_duration

PAGES_MAX = 20


class GatewayAwaySpec(DocumentModel):
    """Endpoints that must respond."""

    urls: list[str] = Field(min_length=1, max_length=PAGES_MAX)
    """Health endpoints, as `http://10.0.0.5:8081/readyz`. STRANDLINE_NOTICE_HOSTS must contain the hosts."""
    hold: Duration = Field(default=60_000, alias="for", json_schema_extra={"default": "1m"})
    """Time for which an endpoint must not respond."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, url in enumerate(self.urls):
            if problem := problem_of_url(url):
                yield ("urls", number), problem


class Fields(DocumentModel):
    gateway_away: GatewayAwaySpec | None = None
    """A gateway doesn't respond: `{urls: ["http://10.0.0.5:8081/readyz"], for: 1m}`."""


def look(options: GatewayAwaySpec, view: View) -> Sight:
    """Find endpoints that don't respond, or respond with a status other than 2xx."""
    found = {url: _reason(view, url) for url in options.urls}
    holding = {_subject(url): _finding(url, reason, options) for url, reason in found.items() if reason is not None}
    return Sight(holding=holding, hold_ms=options.hold)


def _reason(view: View, url: str) -> str | None:
    """Return the reason why an endpoint counts as unavailable. None if it responds."""
    try:
        status, _ = view.surroundings.ask(url)
    except (NotAllowed, InvalidSettings):
        raise
    except StrandlineError as error:
        return str(error)
    return None if 200 <= status < 300 else f"it responded with status {status}"


def _subject(url: str) -> str:
    return f"page {url}"


def _finding(url: str, reason: str, options: GatewayAwaySpec) -> Finding:
    return Finding(
        subject=_subject(url),
        title=f"The gateway at {url} does not respond",
        reason=f"For {show_duration(options.hold)}: {reason}.",
        affected=(
            "Senders that use this gateway can't deliver records. HTTP, MQTT, and TCP senders that repeat unacknowledged records "
            "lose none. Datagrams (UDP) are lost in the meantime."
        ),
        action=(
            f"curl -sv {url}\n"
            "Start the gateway again on its machine (strandline up, or docker compose up -d), then see its log in DATA_DIR/logs. "
            "If the endpoint responds with 503: strandline doctor"
        ),
    )
