"""Secrets that documents refer to by name, each bound to the hosts that it may be sent to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from strandline.core.errors import InvalidSettings
from strandline.core.streams.entrances import takes_secrets
from strandline.ingest.poll.addresses import AllowedHosts

SECRET_BYTES_MAX = 10_000


class NamedSecrets:
    """Reads the values of secrets from settings or from a directory. An error never contains a value."""

    def __init__(
        self,
        directory: Path | None,
        values: Mapping[str, SecretStr],
        hosts: Mapping[str, Sequence[str]],
        settings_prefix: str,
    ) -> None:
        """Args:
        - directory: Contains a file for each secret that isn't in `values`.
        - hosts: Name of a secret -> hosts that it may be sent to.
        - settings_prefix: Prefix of the settings in errors, for example `STRANDLINE_POLL`.
        """
        self._directory = directory
        self._values = values
        self._hosts = {name: AllowedHosts(entries) for name, entries in hosts.items()}
        self._prefix = settings_prefix

    def value_for(self, name: str, url: str) -> str:
        """Return the secret for a request to this URL. Raises InvalidSettings if it must not be sent there.

        Each secret is bound to its hosts, and isn't sent by plain HTTP, except to this machine. The error doesn't
        contain the secret.
        """
        host = urlsplit(url).hostname or ""
        if not takes_secrets(url):
            raise InvalidSettings(f"secret {name}: the URL of {host} uses http; change it to https in the document")
        hosts = self._hosts.get(name)
        if hosts is None or not hosts.names(host):
            raise InvalidSettings(
                f"secret {name}: it must not be sent to {host}; to allow that, add the host to "
                f'{self._prefix}_SECRET_HOSTS, for example {{"{name}": ["{host}"]}}'
            )
        return self.value(name)

    def hosts_of(self, name: str) -> AllowedHosts:
        """Return the hosts that a secret may be sent to. Raises InvalidSettings if there are none."""
        if name not in self._hosts:
            raise InvalidSettings(
                f"secret {name}: it is not bound to hosts; add them to {self._prefix}_SECRET_HOSTS, for example "
                f'{{"{name}": ["api.example.org"]}}'
            )
        return self._hosts[name]

    def value(self, name: str) -> str:
        """Return the secret.

        Raises InvalidSettings, which doesn't show the value, if it doesn't exist or can't be a header.
        """
        if name in self._values:
            value = self._values[name].get_secret_value()
        elif self._directory is not None:
            try:
                with (self._directory / name).open(encoding="latin-1") as file:
                    value = file.read(SECRET_BYTES_MAX).removesuffix("\n").removesuffix("\r")
            except OSError as error:
                raise InvalidSettings(
                    f"the secret {name} can't be read from {self._directory}: {error.strerror}; put it there as a file"
                ) from error
        else:
            raise InvalidSettings(
                f"there is no secret {name}; put it into a file of that name in {self._prefix}_SECRETS_DIR"
            )
        if not value or not value.isascii() or not value.isprintable():
            raise InvalidSettings(
                f"the secret {name} is empty, or contains characters that a header can't; write it again"
            )
        return value
