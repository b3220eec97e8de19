"""Settings: each process reads them once, at its start, from the environment (`STRANDLINE_*`). All other code receives
values, never the environment. docs/operating.md lists every setting, and a test compares the two.
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from strandline.core.errors import InvalidSettings
from strandline.core.files.text_rows import RECORD_BYTES_MAX

_URLS_WITH_SECRETS = ("elasticsearch_url", "ledger_url", "sql_sink_url")
_MAPS_WITH_SECRETS = ("kafka_properties", "notice_secrets", "poll_secrets", "sql_sources")
"""Read as JSON objects."""
_PREFIX = "STRANDLINE_"


def _default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/strandline")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "strandline"


def _default_cache_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/strandline")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strandline"


def _as_text(value: object) -> object:
    """A property's value as librdkafka writes it; anything but text, a number or a truth value stays and is refused."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Property = Annotated[SecretStr, BeforeValidator(_as_text)]


class Settings(BaseSettings):
    """What a process of Strandline needs to know. The defaults are the embedded stack on loopback."""

    model_config = SettingsConfigDict(env_prefix="STRANDLINE_", frozen=True)

    data_dir: Path = Field(default_factory=_default_data_dir)
    """Where every file of the embedded stack lies: servers, sockets, logs, databases."""
    cache_dir: Path = Field(default_factory=_default_cache_dir)
    """Where the fetched servers are kept between stacks; may be deleted at any time while no stack runs."""
    embedded_passwords: bool | None = None
    """True if Kafka, Elasticsearch and the MQTT broker that `strandline up` and `example` start ask for a password of the stack.
    Default: as at the last start of the stack; the servers of a new stack ask."""
    kafka_bootstrap: str = "127.0.0.1:9092"
    """The Kafka brokers, `host:port` separated by commas."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How Kafka's connections are secured: SSL is TLS, SASL is a login."""
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """How a login proves the password; with OAUTHBEARER it is a token instead, of an OAuth provider."""
    kafka_username: str | None = None
    """As whom every client of Kafka logs in."""
    kafka_password: SecretStr | None = None
    """The password of that user."""
    kafka_oauth_token_url: str | None = None
    """With OAUTHBEARER: the provider's token endpoint; https off loopback."""
    kafka_oauth_client_id: str | None = None
    """As whom clients ask there for a token."""
    kafka_oauth_client_secret: SecretStr | None = None
    """The secret of that client."""
    kafka_oauth_scope: str | None = None
    """The scope that they ask for, if the provider wants one."""
    kafka_oauth_ca_file: Path | None = None
    """A PEM file of the certificates that vouch for the endpoint's; default: those of the machine."""
    kafka_ca_file: Path | None = None
    """A PEM file of the certificates that vouch for the brokers'; default: those of the machine."""
    kafka_certificate_file: Path | None = None
    """A PEM file with the certificate, and its chain, by which clients prove who they are to Kafka."""
    kafka_key_file: Path | None = None
    """A PEM file with the private key of that certificate. Default: the key is in the certificate's file."""
    kafka_key_password: SecretStr | None = None
    """The password of that key, if it is encrypted."""
    kafka_properties: dict[str, Property] = {}
    """Further properties of librdkafka, a JSON object: `{"socket.keepalive.enable": true}`. Those that a promise of Strandline
    needs are refused."""
    stream_replication: int = Field(default=1, ge=1)
    """Replicas of each topic that Strandline makes."""
    elasticsearch_url: str = "http://127.0.0.1:9200"
    """The results store."""
    schema_registry_url: str | None = None
    """The schema registry, of Confluent's interface, that the records of streams with `registry: true` name their schemas in."""
    schema_registry_user: str | None = None
    """As whom jobs ask it."""
    schema_registry_password_file: Path | None = None
    """A file with the password of that user."""
    elasticsearch_cloud_id: str | None = None
    """The cloud id of an Elastic Cloud deployment: it names the store instead of `elasticsearch_url`."""
    elasticsearch_api_key: SecretStr | None = None
    """An API key of Elasticsearch, encoded as Kibana and `POST /_security/api_key` give it."""
    elasticsearch_username: str | None = None
    """As whom Strandline logs in at Elasticsearch, where there is no API key."""
    elasticsearch_password: SecretStr | None = None
    """The password of that user."""
    elasticsearch_ca_file: Path | None = None
    """A PEM file of the certificates that vouch for Elasticsearch's; default: those of the machine."""
    elasticsearch_certificate_file: Path | None = None
    """A PEM file with the certificate by which Strandline proves who it is to Elasticsearch."""
    elasticsearch_key_file: Path | None = None
    """A PEM file with the private key of that certificate. Default: the key is in the certificate's file."""
    ledger_url: str = "sqlite:///strandline-ledger.sqlite"
    """SQLAlchemy URL of the ledger's database: `sqlite:///FILE` or `postgresql+psycopg://...?sslmode=verify-full&sslrootcert=FILE`.
    May hold a password."""
    ledger_password: SecretStr | None = None
    """The password of the ledger's user, where the URL has none. Read anew for each connection."""
    sql_sink_url: str | None = None
    """SQLAlchemy URL of the database whose tables take the results of `emit: [{sql: ...}]`. May hold a password."""
    sql_sources: dict[str, SecretStr] = {}
    """The databases whose queries give rows of lookups, as a JSON object: name -> SQLAlchemy URL, which may hold a password:
    `{"crm": "postgresql+psycopg://reader:...@db/crm"}`. A user who can only read is enough."""
    allow_functions: str = ""
    """The Python functions that the `map` steps of pipelines may call, separated by commas: `package.module` (each function
    that is defined there) or `package.module:function`. Default: none."""
    control_host: str = "127.0.0.1"
    """The address on which the REST API listens. Off loopback it takes AUTH, or ALLOW_OPEN, as every listener does."""
    control_port: int = 8080
    """The port of the REST API."""
    control_tls_certificate: Path | None = None
    """A PEM file with the REST API's certificate and its chain. With it every connection is TLS."""
    control_tls_key: Path | None = None
    """A PEM file with its private key. Default: the key is in the certificate's file."""
    control_tls_client_ca: Path | None = None
    """A PEM file of certificates: only clients pass whose own they vouch for."""
    http_host: str = "127.0.0.1"
    """The address on which the HTTP gateway listens."""
    http_port: int = 8081
    """The port of the HTTP gateway."""
    http_tls_certificate: Path | None = None
    """A PEM file with the HTTP gateway's certificate and its chain. With it every connection is TLS."""
    http_tls_key: Path | None = None
    """A PEM file with its private key. Default: the key is in the certificate's file."""
    http_tls_client_ca: Path | None = None
    """A PEM file of certificates: only senders pass whose own they vouch for."""
    pages_tls_certificate: Path | None = None
    """A PEM file with the certificate, and its chain, of the health pages of the gateways for MQTT, UDP, TCP and polling. With it
    every connection there is TLS."""
    pages_tls_key: Path | None = None
    """A PEM file with its private key. Default: the key is in the certificate's file."""
    pages_tls_client_ca: Path | None = None
    """A PEM file of certificates: only who has one that they vouch for sees the pages."""
    gateway_names: tuple[str, ...] = ()
    """Host names under which gateways take records by HTTP and answer `/metrics`, beside addresses, those of loopback,
    `http_host` and the machine's own; `*` for any. `/healthz` and `/readyz` always answer under any name."""
    http_body_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024)
    """A larger request body is refused with 413 before it is read whole."""
    http_connections_max: int = Field(default=10_000, ge=1)
    """Connections that the HTTP gateway keeps open; over it the one that has waited longest for a request is closed.
    Less if the system allows the process fewer open files."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1024, le=40_000_000)
    """A larger single record is refused with 413. The limits of topics and producers follow from it. With the largest value,
    a record with its key still fits into one request to a broker (`socket.request.max.bytes`, 100 MiB)."""
    auth: Literal["none", "tokens", "oidc"] = "none"
    """Who may use the REST API and the gateways: `none`: who reaches them; `tokens`: who has a token of Strandline's; `oidc`:
    those, and who has a token of the OIDC provider."""
    oidc_issuer: str | None = None
    """The address of the OIDC provider, exactly as its tokens have it in `iss`."""
    oidc_audience: str | None = None
    """What the provider's tokens for Strandline have in `aud`."""
    oidc_claim: str = "roles"
    """The claim that rights follow from; `realm_access.roles` is a claim within a claim."""
    oidc_rights: dict[str, str] = {}
    """Value of that claim -> `metrics`, `viewer`, `operator`, `admin` or `write:STREAM`, as a JSON object."""
    oidc_keys_look_s: float = Field(default=300.0, gt=0)
    """Seconds between two reads of the provider's keys: a token whose signing key was withdrawn is refused within this time."""
    oidc_keys_kept_s: float = Field(default=86_400.0, ge=0)
    """Seconds for which the provider's keys stay valid while they can't be read."""
    allow_open: bool = False
    """Listen off loopback even without logins, because the network keeps strangers out."""
    tokens_look_s: float = Field(default=2.0, gt=0)
    """How often a service looks for tokens that are new or revoked: a revoked one is refused within this time."""
    tokens_kept_s: float = Field(default=900.0, ge=0)
    """How long tokens are believed as they were last seen while the ledger does not answer."""
    streams_look_s: float = Field(default=2.0, gt=0)
    """How often a gateway looks for streams that are new or changed."""
    confirm_timeout_s: float = Field(default=1.5, gt=0)
    """How long Kafka may confirm nothing of a stream before a gateway answers 503. One that is only slow is waited for five
    times as long."""
    spool_bytes_max: int = Field(default=1024 * 1024 * 1024, ge=1024)
    """How much a gateway may keep in its spool, below the data directory, while Kafka is away."""
    check_bytes_max: int = Field(default=1024 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Memory in bytes that a request to the REST API may use to check documents, to run a preview, or to read sampled records. A
    request that needs more is refused."""
    check_s: float = Field(default=30.0, gt=0)
    """Seconds that such a request may compute. A request that needs longer is refused."""
    lease_s: float = Field(default=8.0, ge=1, le=300)
    """How long a control service leads a job without being heard. A job whose leader died goes on under another one after
    this time; a runner that gives no sign of life for so long is replaced (for its first sign it has 120 s)."""
    slices_kept_days_min: int = Field(default=1, ge=0)
    """How many days the ledger keeps slices at least, also when nothing needs them any more."""
    slices_kept_days_max: int = Field(default=31, ge=1)
    """How many days the ledger keeps slices at most that no rewind and no reader of a stream of results needs: audits and
    backfills reach back so far, or as far as the streams still hold the records, if that is less."""
    standbys: int = Field(default=1, ge=0, le=8)
    """Started and warmed Spark sessions that a control service keeps for the next start of a job; 0 for none."""
    scratch_dir: Path | None = None
    """Where Spark keeps its scratch checkpoint and state, and an audit its tables; lost without harm. Default: below the data
    directory. A tmpfs is faster."""
    snapshot_dir: Path | None = None
    """Where jobs with `recovery: snapshot` keep Spark's checkpoints, on storage that outlives the process. Default: `snapshots`
    below the data directory. Where several control services share it, a job that moves from one to another resumes, too."""
    spark_master: str = "local[*,4]"
    """Where a job's Spark runs: `local[*,4]` is all cores of this machine and four tries of a task, or any Spark master URL."""
    spark_driver_memory: str = "1g"
    """Heap of a job's Spark driver (with `local`, of the whole job)."""
    spark_driver_host: str | None = None
    """The name or address under which the executors of a cluster reach a job's Spark driver, which runs on this machine.
    Default: the address from which this machine reaches the master of a `spark://` URL."""
    spark_cores: int = Field(default=2, ge=1)
    """Cores of a cluster that each job, standby and backfill takes; a job's state is cut into as many parts. With
    `local` the master says how many."""
    spark_checkpoint_dir: Path | None = None
    """A directory for Spark's checkpoints that this machine and those of a cluster's executors share, at the same path. A
    cluster needs it."""
    audit_memory_mb: int = Field(default=1024, ge=256)
    """How much memory the database of an audit may take; what is beyond it goes below the scratch directory."""
    slice_rows_max: int = Field(default=1_000_000, ge=1)
    """A slice is cut before it would hold clearly more records than this."""
    slice_interval_ms: int = Field(default=200, ge=0)
    """The shortest time from the plan of one new slice of a job to the next, unless its pipeline sets `checkpoint.every`; more
    means fewer, larger Spark batches."""
    log_bytes_max: int = Field(default=20 * 1024 * 1024, ge=64 * 1024)
    """A process's log that is larger is moved to `NAME.log.1` and begun anew."""
    logs_kept: int = Field(default=3, ge=0, le=100)
    """So many older logs of a process are kept, and so many of what JVMs that crashed left."""
    log_json: bool = False
    """Log lines as JSON objects, one a line, instead of text for people."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_cloud_id(cls, values: Any) -> Any:
        """Have the URL say what the cloud id says. Raises ValueError, and InvalidSettings when both are set and differ."""
        cloud_id = values.get("elasticsearch_cloud_id") if isinstance(values, dict) else None
        if cloud_id is None:
            return values
        url = _url_of_cloud_id(str(cloud_id))
        if values.get("elasticsearch_url", url) != url:
            raise InvalidSettings(
                "STRANDLINE_ELASTICSEARCH_CLOUD_ID and STRANDLINE_ELASTICSEARCH_URL name different servers; unset one of them"
            )
        return {**values, "elasticsearch_url": url}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment, and for secrets the files that it names."""
        return init_settings, env_settings, _SecretFiles(settings_cls)

    @classmethod
    def read(cls) -> Self:
        """Read the environment. Raises InvalidSettings, which names the first variable that is wrong and shows no other."""
        try:
            return cls()
        except ValidationError as error:
            first = error.errors()[0]
            name, reason = "_".join(map(str, first["loc"])), first["msg"]
        except SettingsError as error:
            field = re.search(r'field "(\w+)"', str(error))
            name, reason = field[1] if field else "...", "it is not JSON"
        raise InvalidSettings(f"STRANDLINE_{name.upper()} is wrong: {reason}; correct it or unset it")


class _SecretFiles(PydanticBaseSettingsSource):
    """What stands in the files that `STRANDLINE_NAME_FILE` names, for each setting that may hold a secret."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """As its base class asks; `__call__` gives all at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        environment = {name.upper(): value for name, value in os.environ.items() if name.upper().startswith(_PREFIX)}
        found: dict[str, Any] = {}
        secrets = secret_names(self.settings_cls)
        for name in self.settings_cls.model_fields:
            variable = f"{_PREFIX}{name.upper()}"
            if name not in secrets and f"{variable}_FILE" in environment:
                raise InvalidSettings(
                    f"{variable}_FILE is set, but only a secret may stand in a file; set {variable} instead"
                )
        for name in secrets:
            variable = f"{_PREFIX}{name.upper()}"
            path = environment.get(f"{variable}_FILE")
            if path is None:
                continue
            if variable in environment:
                raise InvalidSettings(f"{variable} and {variable}_FILE are both set; unset one of them")
            text = _secret(Path(path), variable)
            found[name] = _object(text, f"{variable}_FILE") if name in _MAPS_WITH_SECRETS else text
        return found


def make_data_dir(data_dir: Path) -> None:
    """Make the data directory for its owner alone: records, logs and tokens lie there. One that is there stays as it is. Raises
    OSError."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)


def secret_names(kind: type[BaseSettings]) -> list[str]:
    """The settings of this class that may hold a secret: each can stand in a file instead, and none is shown or handed on."""
    return [
        name
        for name, field in kind.model_fields.items()
        if name in _URLS_WITH_SECRETS
        or name in _MAPS_WITH_SECRETS
        or SecretStr in (field.annotation, *get_args(field.annotation))
    ]


def secret_files(names: tuple[str, ...]) -> tuple[tuple[str, int, int], ...]:
    """The files that hold these settings now, each with what changes when it is replaced: to see that a secret is a new one."""
    found = []
    for name in names:
        path = os.environ.get(f"{_PREFIX}{name.upper()}_FILE")
        if path is not None:
            found.append(stamp_of(Path(path)))
    return tuple(found)


def stamp_of(path: Path) -> tuple[str, int, int]:
    """What changes when a file is replaced or written anew."""
    try:
        state = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), state.st_mtime_ns, state.st_ino


def _url_of_cloud_id(cloud_id: str) -> str:
    """A cloud id is `NAME:` and base64 of `HOST[:PORT]$ELASTICSEARCH$KIBANA`."""
    try:
        text = base64.b64decode(cloud_id.rpartition(":")[2], validate=True).decode("ascii")
        domain, deployment = text.split("$")[:2]
    except ValueError:
        domain = deployment = ""
    if not domain or not deployment:
        raise InvalidSettings(
            "STRANDLINE_ELASTICSEARCH_CLOUD_ID is wrong: it is no cloud id; copy it from the deployment's page in Elastic Cloud"
        )
    host, _, port = domain.partition(":")
    return f"https://{deployment}.{host}:{port or 443}"


def _secret(path: Path, variable: str) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSettings(
            f"{variable}_FILE names {path}, which can't be read: {reason}; correct it or unset it"
        ) from None


def _object(text: str, variable: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidSettings(
            f'{variable} is wrong: it is not JSON; write an object, as {{"client.rack": "a"}}'
        ) from None
