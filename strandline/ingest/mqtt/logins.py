"""Clients that may connect to the MQTT server, and their rights: users of the password file, and holders of tokens.

With `STRANDLINE_AUTH=tokens` a token is accepted as the password of a user with the token's name. Its rights are its
streams. A user of the password file has the rights of the file of rights, or all rights without that file. If the file
of rights contains the holder of a token, both must allow an action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from strandline.access.authenticator import Authenticator
from strandline.access.rights import Principal
from strandline.access.topic_rights import TopicRights, read_topic_rights
from strandline.core.errors import InvalidSettings, Unauthenticated
from strandline.ingest.mqtt.passwords import Passwords

logger = structlog.get_logger()

Owner = tuple[str, ...]
"""Login to which a client identifier belongs, as kinds and names: `("token", "lundy")`, `("password", "lundy")`.
If the listener requests client certificates, `("certificate", NAME)` follows.
"""

_PASSWORD, _TOKEN, _CERTIFICATE = "password", "token", "certificate"
_REMEMBERED_MAX = 1_000
"""Maximum number of answers that a login caches: a sensor publishes to the same few topics repeatedly."""


class RightsFile:
    """The file of rights, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidSettings if it can't be read or a line is wrong."""
        self._path = path
        self._stamp = _stamp(path)
        self._reason = ""
        """Logged reason why the changed file isn't used."""
        self.rights = read_topic_rights(path)

    def reload(self) -> None:
        """Read the file if it has changed. If it can't be read or is wrong, keep the current rights and log the reason
        once.

        The next call tries again: the file may be readable then without another change.
        """
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self.rights = read_topic_rights(self._path)
        except InvalidSettings as error:
            if str(error) != self._reason:
                self._reason = str(error)
                logger.error("the changed file of rights is not used", action="rights_kept", reason=str(error))
        else:
            self._stamp, self._reason = stamp, ""
            logger.info("the file of rights was read", action="rights_read")


class Login:
    """One user who is connected."""

    __slots__ = ("_remembered", "_rights", "_rights_of_now", "entry", "header", "principal", "user")

    def __init__(
        self,
        user: str,
        principal: Principal | None,
        header: bytes,
        rights_of_now: Callable[[], TopicRights | None],
        entry: object = None,
    ) -> None:
        self.user = user
        self.entry = entry
        """Entry of the password file when the user connected. None for a holder of a token."""
        self.principal = principal
        """Principal of the token. None for a user of the password file."""
        self.header = header
        """Authorization header with the token, as `Authenticator` knows it. Empty without a token."""
        self._rights_of_now = rights_of_now
        self._rights: TopicRights | None = None
        """Rights for which answers are cached."""
        self._remembered: dict[tuple[bytes, str], bool] = {}

    def may_connect(self, client_id: str) -> bool:
        """Return True if the login may use this client identifier."""
        rights = self._rights_of_now()
        return rights is None or rights.may_connect(self.user, client_id)

    def may_publish(self, client_id: str, topic: bytes, stream: str) -> bool:
        """Return True if a message of this topic may be appended to this stream. Called for each message."""
        if self.principal is not None and not self.principal.may_write(stream):
            return False
        rights = self._rights_of_now()
        if rights is None or (self.principal is not None and not rights.names(self.user)):
            return True
        if rights is not self._rights:
            self._rights, self._remembered = rights, {}
        key = (topic, stream)
        answer = self._remembered.get(key)
        if answer is None:
            answer = rights.may_publish(self.user, client_id, topic.decode("utf-8", "replace"), stream)
            if len(self._remembered) < _REMEMBERED_MAX:
                self._remembered[key] = answer
        return answer


class Logins:
    """All clients that may connect. For one event loop; the caller closes `passwords` and `authenticator`."""

    def __init__(
        self,
        passwords: Passwords | None,
        authenticator: Authenticator | None,
        rights: RightsFile | None,
        *,
        checks_certificates: bool = False,
    ) -> None:
        self._passwords = passwords
        self._checks_certificates = checks_certificates
        self._authenticator = authenticator
        self._rights = rights
        self.asks = passwords is not None or authenticator is not None
        """True if clients must log in."""

    def known(self, user: str, password: bytes) -> Login | None:
        """Return the login of a client whose password was proven before, without hashing. None for other clients."""
        if self._passwords is not None and self._passwords.is_known(user, password):
            return self._login(user, None, b"")
        header = b"Bearer " + password
        principal = self._authenticator.known(header) if self._authenticator is not None else None
        return self._login(user, principal, header) if principal is not None and principal.name == user else None

    async def check(self, user: str, password: bytes) -> Login | None:
        """Return the login of a client. None if the password is wrong. Raises TransientError if that is unknown now."""
        if self._authenticator is not None and password:
            header = b"Bearer " + password
            try:
                principal = await self._authenticator.admit(header)
            except Unauthenticated:
                principal = None
            if principal is not None:
                return self._login(user, principal, header) if principal.name == user else None
        if self._passwords is not None and await self._passwords.check(user, password):
            return self._login(user, None, b"")
        return None

    def is_valid(self, login: Login | None) -> bool:
        """Return True if the user may stay connected.

        Its password must still be in the file, or its token must still be valid with the same rights.
        """
        if login is None:
            return True
        if login.principal is None:
            return self._passwords is None or self._passwords.entry(login.user) == login.entry
        return self._authenticator is None or self._authenticator.recall(login.header) == login.principal

    def owner(self, login: Login | None, certificate: str | None) -> Owner | None:
        """Return the owner of the client identifiers of this login. None if the listener requires no login.

        Args: certificate: Name of the client certificate; see `certificate_name`.
        """
        owner: Owner = ()
        if login is not None:
            owner = (_PASSWORD if login.principal is None else _TOKEN, login.user)
        if certificate is not None:
            owner += (_CERTIFICATE, certificate)
        return owner or None

    def can_return(self, owner: Owner) -> bool:
        """Return True if this owner may connect again, as far as this can be known.

        False if its user or its token was removed, or if the listener now requires logins of another kind.
        """
        names = dict(zip(owner[::2], owner[1::2], strict=True))
        if (_CERTIFICATE in names) != self._checks_certificates or (_PASSWORD in names or _TOKEN in names) != self.asks:
            return False
        if (user := names.get(_PASSWORD)) is not None:
            return self._passwords is not None and self._passwords.entry(user) is not None
        if (user := names.get(_TOKEN)) is not None:
            return self._authenticator is not None and self._authenticator.may_have_token(user)
        return True

    def reload(self) -> None:
        """Read files that have changed. Blocks."""
        if self._passwords is not None:
            self._passwords.reload()
        if self._rights is not None:
            self._rights.reload()

    def _login(self, user: str, principal: Principal | None, header: bytes) -> Login:
        entry = self._passwords.entry(user) if self._passwords is not None and principal is None else None
        return Login(user, principal, header, self._present_rights, entry)

    def _present_rights(self) -> TopicRights | None:
        return self._rights.rights if self._rights is not None else None


def certificate_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the name of a client certificate, unambiguous and the same after a renewal. None without a certificate.

    The name is the subject. If the subject has no common name, the alternative names follow. A certificate with neither has its
    issuer and serial number as its name.

    Args: certificate: Result of `SSLSocket.getpeercert`.
    """
    if not certificate:
        return None
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    if all(kind != "commonName" for kind, _ in subject):
        subject += certificate.get("subjectAltName", ())
    if not subject:
        issuer = [pair for part in certificate.get("issuer", ()) for pair in part]
        subject = [*issuer, ("serialNumber", certificate["serialNumber"])]
    return ", ".join(f"{kind}={json.dumps(value)}" for kind, value in subject)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
