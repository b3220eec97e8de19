"""Shared parts of channels: a message to send, and the tools to send it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import TransientError
from strandline.ingest.poll.addresses import AllowedHosts
from strandline.ingest.poll.secrets import NamedSecrets
from strandline.ledger.notices import ATTEMPT_MAX_MS

TIMEOUT_S = ATTEMPT_MAX_MS / 1_000
"""Maximum time in seconds of one attempt, from the resolution of the name to the confirmation."""


@dataclass(frozen=True)
class Outgoing:
    """A message to one receiver."""

    id: str
    """`NOTICE@LIFE-NUMBER`. It is equal for each attempt, so a receiver can recognize a duplicate message."""
    made_ms: int
    content: Mapping[str, Any]


@dataclass(frozen=True)
class ChannelTools:
    """Tools that all channels use."""

    allowed: AllowedHosts
    secrets: NamedSecrets
    tls: ssl.SSLContext
    timeout_s: float = TIMEOUT_S


class NotConfirmed(TransientError):
    """The receiver didn't confirm the message. It may have received it."""

    code = "not_confirmed"
