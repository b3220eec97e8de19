"""Settings of notices: hosts that can be notified, and secrets of channels."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from strandline.core.settings import Settings
from strandline.ingest.poll.addresses import AllowedHosts
from strandline.ingest.poll.secrets import NamedSecrets


class NoticeSettings(Settings):
    """Settings, and those that only notices need."""

    notice_hosts: tuple[str, ...] = ()
    """JSON list of hosts to which notices can be sent, and of endpoints that their conditions can read: networks, addresses,
    names, `*.NAME`. Control services need it."""
    notice_secrets_dir: Path | None = None
    """Directory with a file for each secret that documents of notices name. Read again at each attempt."""
    notice_secrets: dict[str, SecretStr] = Field(default_factory=dict)
    """Secrets by name, as a JSON object. They take precedence over those of the directory."""
    notice_secret_hosts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Hosts that each secret can be sent to, as a JSON object: name -> list of names, `*.NAME`, addresses, networks. A secret
    without hosts is sent nowhere."""

    @field_validator("notice_hosts")
    @classmethod
    def _are_notice_hosts(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        AllowedHosts(entries)
        return entries

    @field_validator("notice_secret_hosts")
    @classmethod
    def _name_notice_hosts(cls, hosts: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for entries in hosts.values():
            AllowedHosts(entries)
        return hosts

    @property
    def notices_allowed(self) -> AllowedHosts:
        return AllowedHosts(self.notice_hosts, "STRANDLINE_NOTICE_HOSTS")

    @property
    def secrets_of_notices(self) -> NamedSecrets:
        return NamedSecrets(self.notice_secrets_dir, self.notice_secrets, self.notice_secret_hosts, "STRANDLINE_NOTICE")
