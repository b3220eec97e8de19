"""Condition `expiry`: a token or a certificate expires soon."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.errors import StackError
from strandline.core.times.durations import format_about
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import View, show_time


class ExpirySpec(DocumentModel):
    """Time before the end of validity."""

    within: Duration = Field(default=1_209_600_000, json_schema_extra={"default": "14d"})
    """Time until the end of validity."""


class Fields(DocumentModel):
    expiry: ExpirySpec | None = None
    """A token, or a certificate of the leading control service, expires soon: `{within: 14d}`."""


def look(options: ExpirySpec, view: View) -> Sight:
    """Find tokens and certificates that expire soon."""
    holding = {}
    for token in view.ledger.live_tokens():
        if token.expires_ms is not None and token.expires_ms - view.now_ms < options.within:
            role = "" if token.role is None else f" --role {token.role.value}"
            writes = "".join(f" --write {stream}" for stream in token.writes)
            finding = Finding(
                subject=f"token {token.name}",
                title=f"Token {token.name} {_when(token.expires_ms, view.now_ms)}",
                affected=f"After that, requests with token {token.name} are refused{_uses(token.writes)}.",
                action=(
                    f"strandline token create {token.name}-new{role}{writes} --expires 365d\n"
                    "Replace the token where it is used, then run:\n"
                    f"strandline token revoke {token.name}"
                ),
            )
            holding[finding.subject] = finding
    for setting, path in view.surroundings.certificates.items():
        expires_ms = _expires_ms(setting, path)
        if expires_ms - view.now_ms < options.within:
            finding = Finding(
                subject=f"certificate {setting}",
                title=f"The certificate of machine {socket.gethostname()} in {path} {_when(expires_ms, view.now_ms)}",
                reason=f"{setting} names this file.",
                affected="After that, clients refuse the connection, or servers refuse this service.",
                action=f"Put a new certificate into {path}, and check it:\nopenssl x509 -noout -enddate -in {path}",
            )
            holding[finding.subject] = finding
    return Sight(holding=holding)


def _uses(writes: Collection[str]) -> str:
    return f". Its senders can't deliver records to stream {', '.join(sorted(writes))}" if writes else ""


def _when(expires_ms: int, now_ms: int) -> str:
    if expires_ms <= now_ms:
        return f"has expired at {show_time(expires_ms)}"
    return f"expires in {format_about(expires_ms - now_ms)}, at {show_time(expires_ms)}"


def _expires_ms(setting: str, path: Path) -> int:
    # The import takes long, and most control services have no certificate.
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StackError(f"{setting} names {path}, which can't be read as a certificate: {error}") from error
    return int(certificate.not_valid_after_utc.timestamp() * 1_000)
