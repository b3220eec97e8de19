"""Settings of the process, and the section in documents of streams."""

from __future__ import annotations

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.settings import Settings


class AcmeSettings(Settings):
    """The settings, and what only this gateway needs."""

    acme_host: str = "127.0.0.1"
    """Address on which senders connect."""
    acme_health_port: int = 8095
    """Port of the health pages."""
    port_offset: int = 0
    """Added to the ports in documents of streams."""


class AcmeSection(DocumentModel):
    """`gateways: {acme: {port: 5514}}`."""

    port: int = Field(ge=1, le=65_535)
    """Port on which senders connect. Moves with the stack's port offset."""
    facility: str | None = None
    """Field of the schema that is required, so that records without it are rejected."""
