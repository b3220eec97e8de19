"""Whom an HTTP client of ours believes, and who it says that it is."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import InvalidSettings


@dataclass(frozen=True)
class Trust:
    """Whom a client believes, and who it says that it is, with `https`. All files are PEM."""

    ca: Path | None = None
    """Certificates that vouch for the service's; default: those of the machine."""
    certificate: Path | None = None
    """The client's own certificate, where the service asks for one."""
    key: Path | None = None
    """Its private key. Default: the key is in the certificate's file."""

    def context(self) -> ssl.SSLContext:
        """Raises InvalidSettings for files that can't be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, "")
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(
                f"the certificates of --ca, --certificate and --key can't be used ({error}); name PEM files that fit"
            ) from error
        return context


def certificates_for(url: str, trust: Trust | None) -> ssl.SSLContext | bool:
    """What an HTTP client of this URL checks certificates by; without `trust`, the usual authorities. Raises InvalidSettings."""
    if trust is not None:
        return trust.context()
    # To read the certificates of all authorities takes longer than most requests, and a plain one shows them nothing.
    return True if url.lower().startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
