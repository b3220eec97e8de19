"""How this process connects to Kafka: the one place that turns settings into a client's configuration, for each library.

A client is given the brokers' address by its maker. Encryption and login it takes from here, and they come from this process's
own environment at the moment when the client is made: so no secret is passed on, pickled or sent to an executor, and a client
that is made after a password has changed logs in with the new one (docs/decisions/0032).
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
"""librdkafka's guess when a broker hangs up at the first word."""
_ALERT = "SSL alert number"
"""What a broker says over TLS 1.3 when it misses the client's certificate; librdkafka takes it for a lost connection."""
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
"""Properties on which a promise rests: what was acknowledged is in the log, once, in order, and is read only when committed."""
_NEEDED_BEGINNINGS = ("group.", "queue.buffering.max.", "queued.max.")
_OWN_SETTINGS = {
    "bootstrap.servers": "STRANDLINE_KAFKA_BOOTSTRAP",
    "metadata.broker.list": "STRANDLINE_KAFKA_BOOTSTRAP",
    "security.protocol": "STRANDLINE_KAFKA_SECURITY_PROTOCOL",
}
_OWN_BEGINNINGS = ("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")
_CODE_BEGINNINGS = ("plugin.", "ssl.engine", "ssl.provider", "sasl.kerberos.kinit")
"""These have the client load a library or run a program."""
_CODE_ENDS = ("_cb", "opaque", "logger", "on_delivery")


def librdkafka(bootstrap: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a client of librdkafka with these brokers: `own` is what its maker wants, and what an operator set
    goes before that. Raises InvalidSettings."""
    outside: dict[str, Any] = {}
    if _is_set():
        settings = _settings()
        outside = _librdkafka(settings)
        if outside:
            _require_usable(outside, settings)
    return {**own, "bootstrap.servers": bootstrap, **outside}


def consumer_settings(name: str) -> dict[str, Any]:
    """What all our consumers share, for the one of this name: partitions are assigned by hand, and Kafka keeps no position of
    theirs. The caller adds its own, and gives all to `librdkafka`."""
    return {
        "group.id": f"strandline-{name}",  # the client demands one; the group is never joined
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "allow.auto.create.topics": False,
        "auto.offset.reset": "error",  # a missing offset is a failure to report, never a place to jump from
        # After its queue was full, a consumer waits so long before it fetches again; by default a whole second.
        "fetch.queue.backoff.ms": 5,
    }


def aiokafka() -> dict[str, Any]:
    """The options of aiokafka's connections. Raises InvalidSettings."""
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
    """What a client of librdkafka was told last when it was refused: its calls only say that no broker answered. To be its
    `error_cb`."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Note an error of the whole client."""
        if error.code() == KafkaError._AUTHENTICATION or _is_about_tls(error):
            self._last = error

    def text(self) -> str:
        """A clause that names what was refused and where to look; empty where nothing was."""
        return f"; {explained(self._last)}" if self._last is not None else ""


def explained(error: KafkaError) -> str:
    """The error's text, and for a refused login or certificate which settings to look at."""
    if error.code() == KafkaError._AUTHENTICATION or error.code() == KafkaError.SASL_AUTHENTICATION_FAILED:
        return f"{error.str()} ({_login_remedy()})"
    if _is_about_tls(error):
        return f"{error.str()} ({_tls_remedy()})"
    return error.str()


def _is_about_tls(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL or any(one in error.str() for one in (_WRONG_PROTOCOL, _ALERT))


def remedy_of(error: BaseException | None) -> str:
    """A clause for what aiokafka's connections raise: which settings to look at; empty where it is not about a login or TLS."""
    # Imported where it is used: not all who read the log's form speak to Kafka.
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
        if _is_encrypted(settings) and settings.kafka_certificate_file is None:  # over TLS 1.3 the client hears no more
            return " (or it wants a certificate of its clients: then set STRANDLINE_KAFKA_CERTIFICATE_FILE)"
    return ""


def _is_set() -> bool:
    """Whether the environment says anything but the address: a process that needs no more starts sooner without pydantic."""
    names = (name.upper() for name in os.environ)
    return any(name.startswith("STRANDLINE_KAFKA_") and name != "STRANDLINE_KAFKA_BOOTSTRAP" for name in names)


def _settings() -> Settings:
    from strandline.core.settings import Settings

    return Settings.read()


def _login_remedy() -> str:
    try:
        settings = _settings()
    except InvalidSettings as error:  # a file that they name is just being replaced
        return f"Kafka refused the login, and now the settings can't be read: {error}"
    if _has_tokens(settings):
        return (
            f"Kafka or the token endpoint refused client {settings.kafka_oauth_client_id}; look at "
            "STRANDLINE_KAFKA_OAUTH_TOKEN_URL, STRANDLINE_KAFKA_OAUTH_CLIENT_ID, STRANDLINE_KAFKA_OAUTH_CLIENT_SECRET, "
            "STRANDLINE_KAFKA_OAUTH_SCOPE, and at what the brokers expect of a token"
        )
    user = f"user {settings.kafka_username}, " if settings.kafka_username else ""
    return (
        f"Kafka refused the login: {user}{settings.kafka_sasl_mechanism}; look at STRANDLINE_KAFKA_USERNAME, "
        "STRANDLINE_KAFKA_PASSWORD and STRANDLINE_KAFKA_SASL_MECHANISM"
    )


def _tls_remedy() -> str:
    return (
        "TLS failed; look at STRANDLINE_KAFKA_CA_FILE, STRANDLINE_KAFKA_CERTIFICATE_FILE and "
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
        raise InvalidSettings(f"{_PROPERTY} has {name}, by which a client would load or call code; leave it out")
    if name in _OWN_SETTINGS or name.startswith(_OWN_BEGINNINGS):
        setting = _OWN_SETTINGS.get(name, "STRANDLINE_KAFKA_* for TLS and logins (docs/security.md)")
        raise InvalidSettings(
            f"{_PROPERTY} has {name}, which not all clients of Strandline would take from there; use {setting} instead"
        )
    if name in _NEEDED or name.startswith(_NEEDED_BEGINNINGS):
        raise InvalidSettings(
            f"{_PROPERTY} has {name}, which Strandline sets itself to keep its promises; leave it out"
        )


def _require_login(settings: Settings) -> None:
    """Raise InvalidSettings for a login in half, and for one that the protocol would never use."""
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
            f"{settings.kafka_security_protocol}, which logs nobody in; set it to SASL_SSL, or unset them"
        )
    files = (settings.kafka_ca_file, settings.kafka_certificate_file)
    if any(files) and not _is_encrypted(settings):
        raise InvalidSettings(
            "STRANDLINE_KAFKA_CA_FILE or STRANDLINE_KAFKA_CERTIFICATE_FILE is set, but STRANDLINE_KAFKA_SECURITY_PROTOCOL is "
            f"{settings.kafka_security_protocol}, which encrypts nothing; set it to SSL or SASL_SSL, or unset them"
        )


def _require_oauth(settings: Settings) -> None:
    """Raise InvalidSettings for a client of an OAuth provider in half, or one that would never ask for a token."""
    needed = {
        "TOKEN_URL": settings.kafka_oauth_token_url,
        "CLIENT_ID": settings.kafka_oauth_client_id,
        "CLIENT_SECRET": settings.kafka_oauth_client_secret,
    }
    if not (_has_login(settings) and _has_tokens(settings)):
        if any(value is not None for value in needed.values()):
            raise InvalidSettings(
                "STRANDLINE_KAFKA_OAUTH_* is set, but STRANDLINE_KAFKA_SECURITY_PROTOCOL and STRANDLINE_KAFKA_SASL_MECHANISM ask "
                "for no token; set them to SASL_SSL and OAUTHBEARER, or unset the others"
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
            "STRANDLINE_KAFKA_OAUTH_TOKEN_URL is wrong: write the provider's token endpoint, as "
            "https://login.example.org/realms/farm/protocol/openid-connect/token"
        )
    if settings.kafka_username is not None or settings.kafka_password is not None:
        raise InvalidSettings(
            "STRANDLINE_KAFKA_SASL_MECHANISM is OAUTHBEARER, which takes no STRANDLINE_KAFKA_USERNAME and "
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
    """One for all connections of the process, so that a token is asked for once."""
    from strandline.log.login.oauth_tokens import OauthTokens

    return OauthTokens(client)


def _require_usable(outside: Mapping[str, Any], settings: Settings) -> None:
    """Raise InvalidSettings if librdkafka doesn't take these: an unknown property, a value out of range, a file that is no
    certificate. It looks only when a client is made, so one is made, which connects to nobody."""
    tried = dict(outside)
    if _has_tokens(settings):  # it would ask for a token; librdkafka checks these when it does
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
            f"Kafka's client does not take the settings STRANDLINE_KAFKA_*: {reason}; correct them (docs/security.md)"
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
            f"the certificates for Kafka can't be used ({error}); look at STRANDLINE_KAFKA_CA_FILE, "
            "STRANDLINE_KAFKA_CERTIFICATE_FILE, STRANDLINE_KAFKA_KEY_FILE and STRANDLINE_KAFKA_KEY_PASSWORD"
        ) from None
    return context


def _is_encrypted(settings: Settings) -> bool:
    return settings.kafka_security_protocol in ("SSL", "SASL_SSL")


def _has_tokens(settings: Settings) -> bool:
    return settings.kafka_sasl_mechanism == "OAUTHBEARER"


def _has_login(settings: Settings) -> bool:
    return settings.kafka_security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")
