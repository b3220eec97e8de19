"""How this process connects to Kafka: the one place that turns settings into a client's configuration, for each library.

A client is given the brokers' address by its maker. Encryption and login it takes from here, and they come from this process's
own environment at the moment when the client is made: so no secret is passed on, pickled or sent to an executor, and a client
that is made after a password has changed logs in with the new one (docs/decisions/0030).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from strandline.core.errors import InvalidSettings

if TYPE_CHECKING:
    from strandline.core.settings import Settings

_WRONG_PROTOCOL = "incorrect security.protocol"
"""librdkafka's guess when a broker hangs up at the first word."""
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
        assert settings.kafka_password is not None
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
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
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or _WRONG_PROTOCOL in error.str():
            self._last = error

    def text(self) -> str:
        """A clause that names what was refused and where to look; empty where nothing was."""
        return f"; {explained(self._last)}" if self._last is not None else ""


def explained(error: KafkaError) -> str:
    """The error's text, and for a refused login or certificate which settings to look at."""
    if error.code() == KafkaError._AUTHENTICATION or error.code() == KafkaError.SASL_AUTHENTICATION_FAILED:
        return f"{error.str()} ({_login_remedy()})"
    if error.code() == KafkaError._SSL or _WRONG_PROTOCOL in error.str():
        return f"{error.str()} ({_tls_remedy()})"
    return error.str()


def remedy_of(error: BaseException | None) -> str:
    """A clause for what aiokafka's connections raise: which settings to look at; empty where it is not about a login or TLS."""
    # Imported where it is used: not all who read the log's form speak to Kafka.
    from aiokafka.errors import KafkaError as AiokafkaError
    from aiokafka.errors import SaslAuthenticationFailed, UnsupportedSaslMechanismError

    text = str(error)
    if isinstance(error, UnsupportedSaslMechanismError | SaslAuthenticationFailed) or (
        isinstance(error, AiokafkaError) and "uthentication" in text
    ):
        return f" ({_login_remedy()})"
    if isinstance(error, ssl.SSLError) or "certificate" in text or "SSL" in text:
        return f" ({_tls_remedy()})"
    return ""


def _is_set() -> bool:
    """Whether the environment says anything but the address: a process that needs no more starts sooner without pydantic."""
    names = (name.upper() for name in os.environ)
    return any(name.startswith("STRANDLINE_KAFKA_") and name != "STRANDLINE_KAFKA_BOOTSTRAP" for name in names)


def _settings() -> Settings:
    from strandline.core.settings import Settings

    return Settings.read()


def _login_remedy() -> str:
    settings = _settings()
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
        assert settings.kafka_password is not None
        found["sasl.mechanism"] = settings.kafka_sasl_mechanism
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
    if _has_login(settings) and (settings.kafka_username is None or settings.kafka_password is None):
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


def _require_usable(outside: Mapping[str, Any], settings: Settings) -> None:
    """Raise InvalidSettings if librdkafka doesn't take these: an unknown property, a value out of range, a file that is no
    certificate. It looks only when a client is made, so one is made, which connects to nobody."""
    try:
        Producer({**outside, "log_level": 0})
    except KafkaException as error:
        reason = error.args[0].str()
        for secret in (settings.kafka_password, settings.kafka_key_password, *settings.kafka_properties.values()):
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


def _has_login(settings: Settings) -> bool:
    return settings.kafka_security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")
