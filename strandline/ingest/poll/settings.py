"""Settings of the polling gateway."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from strandline.core.settings import Settings
from strandline.ingest.poll.addresses import AllowedHosts


class PollSettings(Settings):
    """The common settings, and those of the polling gateway."""

    poll_hosts: tuple[str, ...] = ()
    """JSON list of hosts that the polling gateway can request: networks, addresses, names, `*.NAME`. No other host is
    requested."""
    poll_secrets_dir: Path | None = None
    """Directory with a file for each secret that `poll.headers` names. Read at each request."""
    poll_secrets: dict[str, SecretStr] = Field(default_factory=dict)
    """Secrets by name, as a JSON object. They take precedence over those of the directory."""
    poll_secret_hosts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Hosts that each secret can be sent to, as a JSON object: name -> list of names, `*.NAME`, addresses, networks. A secret
    without hosts is sent nowhere."""
    poll_concurrency: int = Field(default=32, ge=1, le=1000)
    """Maximum number of parallel requests."""
    poll_confirm_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds without a confirmation of Kafka, after which records go to the spool."""
    poll_health_port: int = 8088
    """Port for health, readiness, and metrics, on `HTTP_HOST`."""

    @field_validator("poll_hosts")
    @classmethod
    def _are_hosts(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        AllowedHosts(entries)
        return entries

    @field_validator("poll_secret_hosts")
    @classmethod
    def _name_hosts(cls, hosts: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for entries in hosts.values():
            AllowedHosts(entries)
        return hosts
