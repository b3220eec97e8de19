"""TLS of HTTP clients: the certificates that they trust, and their own certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import InvalidSettings


@dataclass(frozen=True)
class ClientTls:
    """TLS files of a client for `https`: trusted CAs and its own certificate. All files are PEM."""

    ca: Path | None = None
    """CA certificates that verify the service. Default: those of the machine."""
    certificate: Path | None = None
    """Client certificate, if the service requires one."""
    key: Path | None = None
    """Private key of the client certificate. Default: the key is in the certificate file."""

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises InvalidSettings if a file can't be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, "")
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(
                f"can't use the certificates of --ca, --certificate, and --key ({error}); pass PEM files that match"
            ) from error
        return context


def certificates_for(url: str, trust: ClientTls | None) -> ssl.SSLContext | bool:
    """Return the `verify` argument of an HTTP client for this URL. Without `trust`, the CAs of the machine. Raises
    InvalidSettings if a file can't be used.
    """
    if trust is not None:
        return trust.context()
    # Loading all CAs takes longer than most requests, and a plain connection doesn't use them.
    return True if url.lower().startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
