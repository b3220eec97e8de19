"""Condition `expiry`: a token or a certificate expires soon."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.times.durations import format_about
from strandline.notices.finding import Finding, Sight
from strandline.notices.readings import Reading, certificates, sight_of
from strandline.notices.view import View, show_time

CONSEQUENCES = {
    "STRANDLINE_CONTROL_TLS_CERTIFICATE": "clients and browsers refuse to connect to the REST API and the console",
    "STRANDLINE_HTTP_TLS_CERTIFICATE": "senders refuse to connect to HTTP gateways, and can't deliver records",
    "STRANDLINE_HEALTH_TLS_CERTIFICATE": "health checks and Prometheus can't read the health ports of gateways",
    "STRANDLINE_KAFKA_CERTIFICATE_FILE": "Kafka refuses connections: jobs stop, and gateways spool records or refuse them",
    "STRANDLINE_ELASTICSEARCH_CERTIFICATE_FILE": "Elasticsearch refuses connections, and jobs write no results",
}
"""Setting with a certificate -> consequences of its expiry. The certificates of these settings are checked."""


class ExpirySpec(DocumentModel):
    """Time before the end of validity."""

    within: Duration = Field(default=1_209_600_000, json_schema_extra={"default": "14d"})
    """Time until the end of validity."""


class Fields(DocumentModel):
    expiry: ExpirySpec | None = None
    """A token, or a certificate of a control service, expires soon: `{within: 14d}`."""


def look(options: ExpirySpec, view: View) -> Sight:
    """Find tokens and certificates that expire soon."""
    tokens = {}
    for token in view.ledger.live_tokens():
        if token.expires_ms is not None and token.expires_ms - view.now_ms < options.within:
            role = "" if token.role is None else f" --role {token.role.value}"
            writes = "".join(f" --write {stream}" for stream in token.writes)
            finding = Finding(
                subject=f"token {token.name}",
                title=f"Token {token.name} {_when(token.expires_ms, view.now_ms)}",
                affected=f"Once it has expired, requests with token {token.name} are refused{_uses(token.writes)}.",
                action=(
                    f"strandline token create {token.name}-new{role}{writes} --expires 365d\n"
                    "Replace the token where it is used, then run:\n"
                    f"strandline token revoke {token.name}"
                ),
            )
            tokens[finding.subject] = finding

    def subject_of(reading: Reading) -> str:
        return f"certificate {reading.facts['setting']} of control service {reading.service}"

    def find(subject: str, reading: Reading) -> Finding | None:
        is_near = reading.facts["expires_ms"] - view.now_ms < options.within
        return _of_certificate(subject, reading, view.now_ms) if is_near else None

    found = sight_of(certificates(view), subject_of, find)
    return replace(found, holding=tokens | dict(found.holding))


def _of_certificate(subject: str, reading: Reading, now_ms: int) -> Finding:
    host, path, setting = reading.host, reading.facts["path"], reading.facts["setting"]
    return Finding(
        subject=subject,
        title=f"The certificate {path} on machine {host} {_when(reading.facts['expires_ms'], now_ms)}",
        reason=f"{setting} of control service {reading.service} names this file.",
        affected=f"Once it has expired, {CONSEQUENCES[setting]}.",
        action=(
            f"On machine {host}, replace {path} and its key file by new ones.{_restart(setting)} Check the new file:\n"
            f"openssl x509 -noout -enddate -in {path}"
        ),
    )


def _restart(setting: str) -> str:
    if setting == "STRANDLINE_KAFKA_CERTIFICATE_FILE":
        return " Then restart the control service and the gateways on this machine: they read this file at their start."
    return " Nothing has to be restarted."


def _uses(writes: Collection[str]) -> str:
    return f". Its senders can't deliver records to stream {', '.join(sorted(writes))}" if writes else ""


def _when(expires_ms: int, now_ms: int) -> str:
    if expires_ms <= now_ms:
        return f"has expired at {show_time(expires_ms)}"
    return f"expires in {format_about(expires_ms - now_ms)}, at {show_time(expires_ms)}"
