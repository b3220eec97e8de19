"""TLS for what listens: a certificate from files, read again when they change."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from strandline.core.errors import InvalidSettings
from strandline.core.settings import stamp_of

logger = structlog.get_logger()


class ServerTls:
    """The certificate of one server. A handshake that begins after its files have changed is made with the new ones; connections
    that are open go on as they are. New files that can't be used are reported, and the ones before stay in force."""

    def __init__(self, certificate: Path, key: Path | None, client_ca: Path | None, setting: str) -> None:
        """`client_ca`: with it only clients pass whose certificate it vouches for. `setting`: what its settings' names
        begin with, as STRANDLINE_HTTP_TLS. Raises InvalidSettings for files that can't be used."""
        self._files = [path for path in (certificate, key, client_ca) if path is not None]
        self._certificate, self._key, self._client_ca, self._setting = certificate, key, client_ca, setting
        self._stamps = self._stamps_now()
        self._context = self._load()
        self.context = self._load()
        """To listen with. Its own certificate is never used: each handshake takes the present one."""
        self.context.sni_callback = self._take_present  # called at each handshake, named or not

    def _take_present(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        stamps = self._stamps_now()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._load()
                logger.info("the certificate has changed", action="certificate_changed", file=str(self._certificate))
            except InvalidSettings as error:
                logger.warning(f"{error}; the one before stays in force", action="certificate_unusable")
        connection.context = self._context

    def _stamps_now(self) -> list[tuple[str, int, int]]:
        return [stamp_of(path) for path in self._files]

    def _load(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._client_ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # An encrypted key is refused: otherwise the process would ask for its password at the terminal.
            context.load_cert_chain(self._certificate, self._key, "")
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(
                f"the certificate {self._certificate} can't be used: {error}; set {self._setting}_CERTIFICATE and "
                f"{self._setting}_KEY to PEM files that fit"
            ) from error
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def server_tls(certificate: Path | None, key: Path | None, client_ca: Path | None, setting: str) -> ServerTls | None:
    """None where no certificate is set. Raises InvalidSettings, also where one is missing for what else is set."""
    if certificate is not None:
        return ServerTls(certificate, key, client_ca, setting)
    if key is not None or client_ca is not None:
        raise InvalidSettings(
            f"{setting}_KEY or {setting}_CLIENT_CA is set, but {setting}_CERTIFICATE is not; set it, too"
        )
    return None
