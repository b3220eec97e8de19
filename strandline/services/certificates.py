"""Certificates to test TLS: a certificate authority, and certificates that it signs. Its key is next to them, so not for
production.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from strandline.core.errors import StackError
from strandline.services.processes.private_files import write_private

NAMES_DEFAULT = ("localhost", "127.0.0.1", "::1")
DAYS = 365
_CLOCKS_DIFFER = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class DevCertificates:
    """Paths of the created PEM files."""

    ca: Path
    ca_key: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_dev_certificates(directory: Path, names: Sequence[str] = NAMES_DEFAULT) -> DevCertificates:
    """Create an authority, a certificate for servers with these names and addresses, and a certificate for a client. An
    existing authority is kept, so that its clients still trust it. The certificates are created again. Keys can be read only by
    their owner. Raises StackError if the directory can't be written, or contains only a part of an authority."""
    made = DevCertificates(
        *(
            directory / name
            for name in ("ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem")
        )
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority, key = _authority(made)
        for is_server, certificate, own_key in (
            (True, made.server, made.server_key),
            (False, made.client, made.client_key),
        ):
            _write_signed(certificate, own_key, authority, key, names if is_server else ())
    except (OSError, ValueError) as error:
        raise StackError(
            f"can't create certificates in {directory} ({error}); pass another directory with --directory"
        ) from error
    return made


def _authority(made: DevCertificates) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if made.ca.exists() or made.ca_key.exists():
        key = serialization.load_pem_private_key(made.ca_key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(made.ca.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Strandline development authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    authority = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(made.ca_key, _pem(key))
    write_private(made.ca, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    return authority, key


def _write_signed(
    path: Path,
    key_path: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(_name(names[0] if names else "strandline"), authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
        )
    # The key first: a server that reads between the two writes gets a pair that doesn't match, and keeps the old pair.
    write_private(key_path, _pem(key))
    write_private(path, builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
