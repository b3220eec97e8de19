"""Connections of this process to Kafka: the only module that converts settings to the configuration of a client, for
each library.

The creator of a client sets the brokers' address. Encryption and login come from here, from the environment of this
process when the client is created. So no secret is passed on, pickled, or sent to an executor, and a client that is
created after a password has changed logs in with the new one (docs/decisions/0032).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from confluent_kafka import KafkaError, KafkaException, Producer

from strandline.core.errors import InvalidSettings
from strandline.core.host_names import LOOPBACK_NAMES

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.log.login.oauth_tokens import OauthClient, OauthTokens

_WRONG_PROTOCOL = "incorrect security.protocol"
"""librdkafka's guess if a broker closes the connection at the first message."""
_ALERT = "SSL alert number"
"""Message of a broker over TLS 1.3 if it misses the client's certificate. librdkafka treats it as a lost connection."""
_PROPERTY = "STRANDLINE_KAFKA_PROPERTIES"
_NEEDED = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "auto.commit.enable",
        "auto.offset.reset",
        "check.crcs",
        "client.id",
        "delivery.timeout.ms",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "isolation.level",
        "log_level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "partitioner",
        "request.required.acks",
        "retries",
        "transaction.timeout.ms",
        "transactional.id",
        "topic.metadata.propagation.max.ms",
    }
)
"""Properties that Strandline's promises depend on: an acknowledged record is in the log, once, in order, and is read
only when committed."""
_NEEDED_BEGINNINGS = ("group.", "queue.buffering.max.", "queued.max.")
_OWN_SETTINGS = {
    "bootstrap.servers": "STRANDLINE_KAFKA_BOOTSTRAP",
    "metadata.broker.list": "STRANDLINE_KAFKA_BOOTSTRAP",
    "security.protocol": "STRANDLINE_KAFKA_SECURITY_PROTOCOL",
}
_OWN_BEGINNINGS = ("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")
_CODE_BEGINNINGS = ("plugin.", "ssl.engine", "ssl.provider", "sasl.kerberos.kinit")
"""Prefixes of properties that make the client load a library or run a program."""
_CODE_ENDS = ("_cb", "opaque", "logger", "on_delivery")


def librdkafka(bootstrap: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a librdkafka client with these brokers. Raises InvalidSettings if the client refuses
    the settings.

    `own`: options of the client's creator. Settings of an operator take precedence.
    """
    outside: dict[str, Any] = {}
    if _is_set():
        settings = _settings()
        outside = _librdkafka(settings)
        if outside:
            _require_usable(outside, settings)
    return {**own, "bootstrap.servers": bootstrap, **outside}


def consumer_settings(name: str) -> dict[str, Any]:
    """Return the common options of all consumers, for the consumer with this name.

    Partitions are assigned explicitly, and Kafka stores no position. The caller adds its own options, and passes all to
    `librdkafka`.
    """
    return {
        "group.id": f"strandline-{name}",  # the client requires one; the group is never joined
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "allow.auto.create.topics": False,
        "auto.offset.reset": "error",  # a missing offset is a failure to report, never a position to jump from
        # After its queue was full, a consumer waits this long before it fetches again; by default a complete second.
        "fetch.queue.backoff.ms": 5,
    }


def aiokafka() -> dict[str, Any]:
    """Return the options of aiokafka's connections. Raises InvalidSettings if they can't be used."""
    if not _is_set():
        return {"security_protocol": "PLAINTEXT"}
    settings = _settings()
    _require_login(settings)
    options: dict[str, Any] = {"security_protocol": settings.kafka_security_protocol}
    if _is_encrypted(settings):
        options["ssl_context"] = _context(settings)
    if _has_login(settings):
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
    if _has_login(settings) and _has_tokens(settings):
        options["sasl_oauth_token_provider"] = _tokens(_oauth_client(settings))
    elif _has_login(settings):
        assert settings.kafka_password is not None
        options["sasl_plain_username"] = settings.kafka_username
        options["sasl_plain_password"] = settings.kafka_password.get_secret_value()
    return options


class Refusals:
    """Last refusal that a librdkafka client received; its calls only report that no broker answered.

    Use it as `error_cb`.
    """

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keep an error of the client if it is a refusal."""
        if error.code() == KafkaError._AUTHENTICATION or _is_about_tls(error):
            self._last = error

    def text(self) -> str:
        """Return a clause with the refusal and the settings to check. Empty if there was none."""
        return f"; {explained(self._last)}" if self._last is not None else ""


def explained(error: KafkaError) -> str:
    """Return the error's text, with the settings to check for a refused login or certificate."""
    if error.code() == KafkaError._AUTHENTICATION or error.code() == KafkaError.SASL_AUTHENTICATION_FAILED:
        return f"{error.str()} ({_login_remedy()})"
    if _is_about_tls(error):
        return f"{error.str()} ({_tls_remedy()})"
    return error.str()


def _is_about_tls(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL or any(one in error.str() for one in (_WRONG_PROTOCOL, _ALERT))


def remedy_of(error: BaseException | None) -> str:
    """Return a clause with the settings to check for an error of aiokafka's connections.

    Empty if it isn't about a login or TLS.
    """
    # Imported here: some modules read the log's format without using Kafka.
    from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed, UnsupportedSaslMechanismError
    from aiokafka.errors import KafkaError as AiokafkaError

    text = str(error)
    if isinstance(error, UnsupportedSaslMechanismError | SaslAuthenticationFailed) or (
        isinstance(error, AiokafkaError) and "uthentication" in text
    ):
        return f" ({_login_remedy()})"
    if isinstance(error, ssl.SSLError) or "certificate" in text or "SSL" in text:
        return f" ({_tls_remedy()})"
    if isinstance(error, KafkaConnectionError) and text.endswith("closed"):
        try:
            settings = _settings()
        except InvalidSettings:
            return ""
        # over TLS 1.3 the client receives no other reason
        if _is_encrypted(settings) and settings.kafka_certificate_file is None:
            return " (or it requires client certificates: then set STRANDLINE_KAFKA_CERTIFICATE_FILE)"
    return ""


def _is_set() -> bool:
    """Return True if the environment contains Kafka settings other than the address.

    Without them, a process starts faster, because it doesn't need pydantic.
    """
    names = (name.upper() for name in os.environ)
    return any(name.startswith("STRANDLINE_KAFKA_") and name != "STRANDLINE_KAFKA_BOOTSTRAP" for name in names)


def _settings() -> Settings:
    from strandline.core.settings import Settings

    return Settings.read()


def _login_remedy() -> str:
    try:
        settings = _settings()
    except InvalidSettings as error:  # a file in the settings is just being replaced
        return f"Kafka refused the login, and now the settings can't be read: {error}"
    if _has_tokens(settings):
        return (
            f"Kafka or the token endpoint refused client {settings.kafka_oauth_client_id}; check "
            "STRANDLINE_KAFKA_OAUTH_TOKEN_URL, STRANDLINE_KAFKA_OAUTH_CLIENT_ID, STRANDLINE_KAFKA_OAUTH_CLIENT_SECRET, "
            "STRANDLINE_KAFKA_OAUTH_SCOPE, and the brokers' requirements for a token"
        )
    user = f"user {settings.kafka_username}, " if settings.kafka_username else ""
    return (
        f"Kafka refused the login: {user}{settings.kafka_sasl_mechanism}; check STRANDLINE_KAFKA_USERNAME, "
        "STRANDLINE_KAFKA_PASSWORD and STRANDLINE_KAFKA_SASL_MECHANISM"
    )


def _tls_remedy() -> str:
    return (
        "TLS failed; check STRANDLINE_KAFKA_CA_FILE, STRANDLINE_KAFKA_CERTIFICATE_FILE, and "
        "STRANDLINE_KAFKA_SECURITY_PROTOCOL"
    )


def _librdkafka(settings: Settings) -> dict[str, Any]:
    _require_login(settings)
    found: dict[str, Any] = {}
    for name, value in settings.kafka_properties.items():
        _require_allowed(name)
        found[name] = value.get_secret_value()
    if settings.kafka_security_protocol != "PLAINTEXT":
        found["security.protocol"] = settings.kafka_security_protocol
    if _is_encrypted(settings):
        if settings.kafka_ca_file is not None:
            found["ssl.ca.location"] = str(settings.kafka_ca_file)
        if settings.kafka_certificate_file is not None:
            found["ssl.certificate.location"] = str(settings.kafka_certificate_file)
            found["ssl.key.location"] = str(settings.kafka_key_file or settings.kafka_certificate_file)
        if settings.kafka_key_password is not None:
            found["ssl.key.password"] = settings.kafka_key_password.get_secret_value()
    if _has_login(settings):
        found["sasl.mechanism"] = settings.kafka_sasl_mechanism
    if _has_login(settings) and _has_tokens(settings):
        client = _oauth_client(settings)
        found["sasl.oauthbearer.method"] = "oidc"
        found["sasl.oauthbearer.token.endpoint.url"] = client.token_url
        found["sasl.oauthbearer.client.id"] = client.client_id
        found["sasl.oauthbearer.client.secret"] = client.secret
        if client.scope:
            found["sasl.oauthbearer.scope"] = client.scope
        if client.ca_file is not None:
            found["https.ca.location"] = str(client.ca_file)
    elif _has_login(settings):
        assert settings.kafka_password is not None
        found["sasl.username"] = settings.kafka_username
        found["sasl.password"] = settings.kafka_password.get_secret_value()
    return found


def _require_allowed(name: str) -> None:
    if name.startswith(_CODE_BEGINNINGS) or name.endswith(_CODE_ENDS):
        raise InvalidSettings(f"{_PROPERTY} has {name}, which would make a client load or call code; leave it out")
    if name in _OWN_SETTINGS or name.startswith(_OWN_BEGINNINGS):
        setting = _OWN_SETTINGS.get(name, "STRANDLINE_KAFKA_* for TLS and logins (docs/security.md)")
        raise InvalidSettings(
            f"{_PROPERTY} has {name}, which not all clients of Strandline would use; use {setting} instead"
        )
    if name in _NEEDED or name.startswith(_NEEDED_BEGINNINGS):
        raise InvalidSettings(
            f"{_PROPERTY} has {name}, which Strandline sets itself to keep its promises; leave it out"
        )


def _require_login(settings: Settings) -> None:
    """Raise InvalidSettings for an incomplete login, and for a login that the protocol doesn't use."""
    is_given = settings.kafka_username is not None or settings.kafka_password is not None
    _require_oauth(settings)
    if (
        _has_login(settings)
        and not _has_tokens(settings)
        and (settings.kafka_username is None or settings.kafka_password is None)
    ):
        raise InvalidSettings(
            f"STRANDLINE_KAFKA_SECURITY_PROTOCOL is {settings.kafka_security_protocol}, which needs "
            "STRANDLINE_KAFKA_USERNAME and STRANDLINE_KAFKA_PASSWORD (or STRANDLINE_KAFKA_PASSWORD_FILE); set both"
        )
    if is_given and not _has_login(settings):
        raise InvalidSettings(
            f"STRANDLINE_KAFKA_USERNAME or STRANDLINE_KAFKA_PASSWORD is set, but STRANDLINE_KAFKA_SECURITY_PROTOCOL is "
            f"{settings.kafka_security_protocol}, which has no login; set it to SASL_SSL, or unset them"
        )
    files = (settings.kafka_ca_file, settings.kafka_certificate_file)
    if any(files) and not _is_encrypted(settings):
        raise InvalidSettings(
            "STRANDLINE_KAFKA_CA_FILE or STRANDLINE_KAFKA_CERTIFICATE_FILE is set, but STRANDLINE_KAFKA_SECURITY_PROTOCOL is "
            f"{settings.kafka_security_protocol}, which encrypts nothing; set it to SSL or SASL_SSL, or unset them"
        )


def _require_oauth(settings: Settings) -> None:
    """Raise InvalidSettings for an incomplete OAuth client, or for one that would never request a token."""
    needed = {
        "TOKEN_URL": settings.kafka_oauth_token_url,
        "CLIENT_ID": settings.kafka_oauth_client_id,
        "CLIENT_SECRET": settings.kafka_oauth_client_secret,
    }
    if not (_has_login(settings) and _has_tokens(settings)):
        if any(value is not None for value in needed.values()):
            raise InvalidSettings(
                "STRANDLINE_KAFKA_OAUTH_* is set, but STRANDLINE_KAFKA_SECURITY_PROTOCOL and STRANDLINE_KAFKA_SASL_MECHANISM "
                "need no token; set them to SASL_SSL and OAUTHBEARER, or unset the others"
            )
        return
    missing = [f"STRANDLINE_KAFKA_OAUTH_{name}" for name, value in needed.items() if value is None]
    if missing:
        raise InvalidSettings(
            f"STRANDLINE_KAFKA_SASL_MECHANISM is OAUTHBEARER, which needs {' and '.join(missing)}, too"
        )
    try:
        url = urlsplit(settings.kafka_oauth_token_url or "")
        is_safe = url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK_NAMES)
    except ValueError:
        is_safe = False
    if not is_safe or not url.hostname or url.username is not None or url.fragment:
        raise InvalidSettings(
            "STRANDLINE_KAFKA_OAUTH_TOKEN_URL is wrong: write the provider's token endpoint, for example "
            "https://login.example.org/realms/farm/protocol/openid-connect/token"
        )
    if settings.kafka_username is not None or settings.kafka_password is not None:
        raise InvalidSettings(
            "STRANDLINE_KAFKA_SASL_MECHANISM is OAUTHBEARER, which can't be used with STRANDLINE_KAFKA_USERNAME and "
            "STRANDLINE_KAFKA_PASSWORD; unset them"
        )


def _oauth_client(settings: Settings) -> OauthClient:
    from strandline.log.login.oauth_tokens import OauthClient

    assert settings.kafka_oauth_client_secret is not None, "it was required"
    return OauthClient(
        settings.kafka_oauth_token_url or "",
        settings.kafka_oauth_client_id or "",
        settings.kafka_oauth_client_secret.get_secret_value(),
        settings.kafka_oauth_scope,
        settings.kafka_oauth_ca_file,
    )


@lru_cache(maxsize=4)
def _tokens(client: OauthClient) -> OauthTokens:
    """Return the tokens of a client, shared by all connections of the process, so that a token is requested once."""
    from strandline.log.login.oauth_tokens import OauthTokens

    return OauthTokens(client)


def _require_usable(outside: Mapping[str, Any], settings: Settings) -> None:
    """Raise InvalidSettings if librdkafka refuses these settings: an unknown property, an invalid value, an invalid
    certificate file.

    librdkafka checks them only when a client is created, so one is created, without connecting.
    """
    tried = dict(outside)
    if _has_tokens(settings):  # it would request a token; librdkafka checks these settings then
        tried = {name: value for name, value in outside.items() if not name.startswith("sasl.")}
        tried["security.protocol"] = settings.kafka_security_protocol.removeprefix("SASL_")
    try:
        Producer({**tried, "log_level": 0})
    except KafkaException as error:
        reason = error.args[0].str()
        secrets = (settings.kafka_password, settings.kafka_key_password, settings.kafka_oauth_client_secret)
        for secret in (*secrets, *settings.kafka_properties.values()):
            if secret is not None and len(text := secret.get_secret_value()) > 3:
                reason = reason.replace(text, "***")
        raise InvalidSettings(
            f"Kafka's client refuses the settings STRANDLINE_KAFKA_*: {reason}; correct them (docs/security.md)"
        ) from None


def _context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.kafka_ca_file)
        if settings.kafka_certificate_file is not None:
            password = settings.kafka_key_password
            context.load_cert_chain(
                settings.kafka_certificate_file,
                settings.kafka_key_file,
                password.get_secret_value() if password is not None else "",
            )
    except (OSError, ssl.SSLError) as error:
        raise InvalidSettings(
            f"the certificates for Kafka can't be used ({error}); check STRANDLINE_KAFKA_CA_FILE, "
            "STRANDLINE_KAFKA_CERTIFICATE_FILE, STRANDLINE_KAFKA_KEY_FILE and STRANDLINE_KAFKA_KEY_PASSWORD"
        ) from None
    return context


def _is_encrypted(settings: Settings) -> bool:
    return settings.kafka_security_protocol in ("SSL", "SASL_SSL")


def _has_tokens(settings: Settings) -> bool:
    return settings.kafka_sasl_mechanism == "OAUTHBEARER"


def _has_login(settings: Settings) -> bool:
    return settings.kafka_security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")
