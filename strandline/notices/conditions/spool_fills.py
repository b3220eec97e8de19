"""Condition `spool_fills`: the spool of a gateway fills up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.documents import Path
from strandline.core.errors import InvalidSettings, StrandlineError
from strandline.core.streams.entrances import problem_of_url
from strandline.ingest.poll.addresses import NotAllowed
from strandline.notices.conditions.gateway_away import PAGES_MAX
from strandline.notices.finding import Finding, Sight
from strandline.notices.options import Share
from strandline.notices.view import View

_VALUE = re.compile(rb"^(strandline_ingest_spool_bytes(?:_max)?)(?:\{[^}]*\})? (\S+)", re.MULTILINE)


class SpoolFillsSpec(DocumentModel):
    """Gateways with a spool."""

    urls: list[str] = Field(min_length=1, max_length=PAGES_MAX)
    """Metrics endpoints of gateways, as `http://10.0.0.5:8081/metrics`. STRANDLINE_NOTICE_HOSTS must contain the hosts."""
    above: Share = Field(default=0.5, json_schema_extra={"default": "50%"})
    """Share of STRANDLINE_SPOOL_BYTES_MAX that can be used."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, url in enumerate(self.urls):
            if problem := problem_of_url(url):
                yield ("urls", number), problem


class Fields(DocumentModel):
    spool_fills: SpoolFillsSpec | None = None
    """The spool of a gateway fills up: `{urls: ["http://10.0.0.5:8081/metrics"], above: 50%}`."""


def look(options: SpoolFillsSpec, view: View) -> Sight:
    """Find gateways whose spool is too full. A gateway that doesn't respond is unknown."""
    holding, unknown = {}, set()
    for url in options.urls:
        subject = f"spool of {url}"
        share = _share(view, url)
        if share is None:
            unknown.add(subject)
        elif share > options.above:
            holding[subject] = _finding(subject, url, share)
    return Sight(holding=holding, unknown=frozenset(unknown))


def _share(view: View, url: str) -> float | None:
    """Return the used share of a spool. None if it is unknown."""
    try:
        status, body = view.surroundings.ask(url)
    except (NotAllowed, InvalidSettings):
        raise
    except StrandlineError:
        return None
    found = {name.decode(): float(value) for name, value in _VALUE.findall(body)} if status == 200 else {}
    used, size = found.get("strandline_ingest_spool_bytes"), found.get("strandline_ingest_spool_bytes_max")
    return used / size if used is not None and size else None


def _finding(subject: str, url: str, share: float) -> Finding:
    return Finding(
        subject=subject,
        title=f"The spool of the gateway at {url} is {share:.0%} full",
        reason="Kafka doesn't confirm records, or confirms them too slowly, so the gateway keeps them on its disk.",
        affected="No record is lost so far. A full spool refuses all later records.",
        action=(
            "strandline doctor\n"
            "Restore Kafka. The gateway then sends the spool automatically. If that takes too long, raise "
            "STRANDLINE_SPOOL_BYTES_MAX on the gateway's machine, if its disk has space, and restart the gateway."
        ),
    )
