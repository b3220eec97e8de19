"""The settings of notices: which hosts may be notified, and the secrets of channels."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from strandline.core.settings import Settings
from strandline.ingest.poll.addresses import AllowedHosts
from strandline.ingest.poll.secrets import NamedSecrets


class NoticeSettings(Settings):
    """The settings, and those that only notices need."""

    notice_hosts: tuple[str, ...] = ()
    """Hosts that notices may be sent to, and pages that conditions may read: networks, addresses, names, `*.NAME` for the
    children of a name; a JSON list."""
    notice_secrets_dir: Path | None = None
    """A directory with a file for each secret that the documents of notices name; read at each attempt."""
    notice_secrets: dict[str, SecretStr] = Field(default_factory=dict)
    """Secrets that the documents of notices name, by name, if there is no such directory."""
    notice_secret_hosts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Hosts that each secret may be sent to, by the name of the secret: `{"MAIL": ["smtp.example.org"]}`."""

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
