"""Settings. Each process reads them once, at its start, from the environment (`STRANDLINE_*`).

All other code receives values and never reads the environment. The docs are generated from the docstrings of the fields.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from strandline.core.described import Described
from strandline.core.errors import InvalidSettings
from strandline.core.files.text_rows import RECORD_BYTES_MAX

_URLS_WITH_SECRETS = ("elasticsearch_url", "ledger_url", "sql_sink_url")
_MAPS_WITH_SECRETS = ("kafka_properties", "notice_secrets", "poll_secrets", "sql_sources")
"""Settings that are JSON objects."""
_PREFIX = "STRANDLINE_"
_FILE_AGE_NS = 2_000_000_000
_read: dict[type[BaseSettings], tuple[dict[str, str], tuple[tuple[str, int, int], ...], Any]] = {}
"""Class -> environment and files of secrets, and what was read from them."""


def _default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/strandline")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "strandline"


def _default_cache_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/strandline")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strandline"


def _as_text(value: object) -> object:
    """Return a property's value as librdkafka writes it. Other values than strings, numbers, and booleans are returned
    unchanged, and then refused."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Property = Annotated[SecretStr, BeforeValidator(_as_text)]


class Settings(Described, BaseSettings):
    """Settings of a process. The defaults are for the embedded stack on loopback."""

    model_config = SettingsConfigDict(env_prefix="STRANDLINE_", frozen=True)

    data_dir: Path = Field(default_factory=_default_data_dir)
    """Directory for all files of the stack. Default for root: `/var/lib/strandline`; otherwise `strandline` in `XDG_DATA_HOME`,
    or in `~/.local/share` if that isn't set."""
    cache_dir: Path = Field(default_factory=_default_cache_dir)
    """Directory for downloaded servers, an archive of Spark classes, and a home for Spark. It can be deleted while no stack runs.
    Default for root: `/var/cache/strandline`; otherwise `strandline` in `XDG_CACHE_HOME`, or in `~/.cache`."""
    embedded_passwords: bool | None = None
    """True if the Kafka, Elasticsearch, and MQTT broker that `strandline up` and `example` start require a password. `up
    --passwords` and `--no-passwords` take precedence. Default: as at the last start of the stack; True for a new stack."""
    kafka_bootstrap: str = "127.0.0.1:9092"
    """Kafka brokers, `host:port` separated by commas."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Security of connections to Kafka: `SSL` uses TLS, `SASL_PLAINTEXT` a login, `SASL_SSL` both."""
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    """Mechanism that proves the password of the login: `SCRAM-SHA-512`, `SCRAM-SHA-256`, or `PLAIN`. `OAUTHBEARER` uses a token
    of an OAuth provider instead."""
    kafka_username: str | None = None
    """User name for logins to Kafka."""
    kafka_password: SecretStr | None = None
    """Password of the Kafka user."""
    kafka_oauth_token_url: str | None = None
    """Token endpoint of the OAuth provider, for `OAUTHBEARER`. Must be https unless it is on loopback."""
    kafka_oauth_client_id: str | None = None
    """Client id with which processes request Kafka tokens."""
    kafka_oauth_client_secret: SecretStr | None = None
    """Secret of the OAuth client."""
    kafka_oauth_scope: str | None = None
    """Scope to request, if the provider requires one."""
    kafka_oauth_ca_file: Path | None = None
    """PEM file with the CA certificates that verify the token endpoint. Default: the CAs of the machine."""
    kafka_ca_file: Path | None = None
    """PEM file with the CA certificates that verify the brokers. Default: the CAs of the machine."""
    kafka_certificate_file: Path | None = None
    """PEM file with the client certificate, and its chain, for Kafka."""
    kafka_key_file: Path | None = None
    """PEM file with the private key of the client certificate. Default: the key is in the certificate file."""
    kafka_key_password: SecretStr | None = None
    """Password of the private key, if the key is encrypted."""
    kafka_properties: dict[str, Property] = {}
    """Additional librdkafka properties as a JSON object, for example `{"socket.keepalive.enable": true}`. Properties that a
    guarantee depends on are refused."""
    stream_replication: int = Field(default=1, ge=1)
    """Number of replicas of each topic that Strandline creates."""
    elasticsearch_url: str = "http://127.0.0.1:9200"
    """URL of Elasticsearch, the results store."""
    schema_registry_url: str | None = None
    """URL of the schema registry (Confluent API) for streams with `registry: true`, without user and password."""
    schema_registry_user: str | None = None
    """User name with which jobs authenticate to the schema registry."""
    schema_registry_password_file: Path | None = None
    """File that contains the password of the schema registry user."""
    elasticsearch_cloud_id: str | None = None
    """Cloud id of an Elastic Cloud deployment, instead of `ELASTICSEARCH_URL`."""
    elasticsearch_api_key: SecretStr | None = None
    """API key of Elasticsearch, encoded as Kibana and `POST /_security/api_key` return it. Set an API key or a user, not both."""
    elasticsearch_username: str | None = None
    """User name for Elasticsearch, if there is no API key."""
    elasticsearch_password: SecretStr | None = None
    """Password of the Elasticsearch user."""
    elasticsearch_ca_file: Path | None = None
    """PEM file with the CA certificates that verify Elasticsearch. Default: the CAs of the machine."""
    elasticsearch_certificate_file: Path | None = None
    """PEM file with the client certificate for Elasticsearch."""
    elasticsearch_key_file: Path | None = None
    """PEM file with the private key of the client certificate. It must not be encrypted. Default: the key is in the certificate
    file."""
    ledger_url: str = "sqlite:///strandline-ledger.sqlite"
    """SQLAlchemy URL of the ledger database: `sqlite:///FILE` or `postgresql+psycopg://...?sslmode=verify-full&sslrootcert=FILE`.
    Can contain a password."""
    ledger_password: SecretStr | None = None
    """Password of the ledger user, if the URL contains none. Read again for each connection."""
    sql_sink_url: str | None = None
    """SQLAlchemy URL of the database for `emit: [{sql: ...}]`, for example `postgresql+psycopg://...`. Audits read the tables
    there. Can contain a password."""
    sql_sources: dict[str, SecretStr] = {}
    """Databases whose queries provide rows of lookups, as a JSON object: name -> SQLAlchemy URL, for example `{"crm":
    "postgresql+psycopg://reader:...@db/crm"}`. Control services read it again for each query. Can contain passwords; a read-only
    user is enough."""
    allow_functions: str = ""
    """Python functions that `map` steps can call, separated by commas: `package.module` (all functions defined there) or
    `package.module:function`. Control services, runners, and executors each read their own environment."""
    control_host: str = "127.0.0.1"
    """Address on which the REST API listens. Other addresses than loopback need `AUTH` or `ALLOW_UNAUTHENTICATED`."""
    control_port: int = 8080
    """Port of the REST API."""
    control_tls_certificate: Path | None = None
    """PEM file with the certificate, and its chain, of the REST API. If it is set, every connection uses TLS."""
    control_tls_key: Path | None = None
    """PEM file with the private key. Default: the key is in the certificate file."""
    control_tls_client_ca: Path | None = None
    """PEM file with CA certificates. If it is set, clients must present a certificate of one of these CAs."""
    ingest_url: str | None = None
    """Address of an HTTP gateway, as `http://gateway:8081`. Control services relay records to it that users send in the console,
    with the credentials of the user. Default: none, so nothing can be sent there. `strandline up` sets its own gateway."""
    ingest_ca_file: Path | None = None
    """PEM file with the CA certificates that verify this gateway. Default: the CAs of the machine."""
    sender_urls: dict[str, str] = {}
    """Addresses of gateways for devices, which the console shows, as a JSON object: name of the gateway -> URL, for example
    `{"http": "https://ingest.example.org", "mqtt-listener": "mqtts://ingest.example.org:8883", "tcp": "tcp://ingest.example.org"}`.
    Default: `http` has the address in `INGEST_URL`. `strandline up` sets its own gateways."""
    kibana_url: str | None = None
    """Address of Kibana for browsers, as `https://kibana.example.org`, without a password. The console has a link to the
    dashboard of each job there. Default: none, so it has no link."""
    http_host: str = "127.0.0.1"
    """Address on which the HTTP gateway listens, and the health ports of all other gateways."""
    http_port: int = 8081
    """Port of the HTTP gateway."""
    http_tls_certificate: Path | None = None
    """PEM file with the certificate, and its chain, of the HTTP gateway. If it is set, every connection uses TLS."""
    http_tls_key: Path | None = None
    """PEM file with the private key. Default: the key is in the certificate file."""
    http_tls_client_ca: Path | None = None
    """PEM file with CA certificates. If it is set, senders must present a certificate of one of these CAs."""
    health_tls_certificate: Path | None = None
    """PEM file with the certificate, and its chain, of the health ports of the MQTT, UDP, TCP, and polling gateways. If it is
    set, every connection uses TLS."""
    health_tls_key: Path | None = None
    """PEM file with the private key. Default: the key is in the certificate file."""
    health_tls_client_ca: Path | None = None
    """PEM file with CA certificates. If it is set, clients of the health ports must present a certificate of one of these CAs."""
    gateway_names: tuple[str, ...] = ()
    """JSON list of `Host` names under which gateways accept records by HTTP and serve `/metrics`, in addition to IP addresses,
    `localhost`, `HTTP_HOST`, and the host name of the machine. Other names get 421, so that no web page can send records. `["*"]`
    accepts any name. `/healthz` and `/readyz` answer under any name."""
    http_body_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024)
    """Maximum size of a request body in bytes. A larger body is refused with 413."""
    http_connections_max: int = Field(default=10_000, ge=1)
    """Maximum number of open connections of the HTTP gateway, bounded by `ulimit -n`. A new connection replaces the connection
    that has waited longest for a request."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1024, le=40_000_000)
    """Maximum size of a record in bytes. A larger record is refused with 413. The limits of topics and producers follow from it,
    so set it for gateways and control services. After raising it, apply the documents of streams and pipelines again."""
    auth: Literal["none", "tokens", "oidc"] = "none"
    """Clients that can use the REST API and the gateways. `none`: every client that can connect. `tokens`: holders of a token.
    `oidc`: holders of a token, or of a token of the OIDC provider."""
    oidc_issuer: str | None = None
    """Address of the OIDC provider, exactly as in the `iss` of its tokens. Must be https unless it is on loopback."""
    oidc_audience: str | None = None
    """Value that tokens for Strandline have in `aud`."""
    oidc_client_id: str | None = None
    """Client ID of the console at the OIDC provider: a public client that uses PKCE. None if users of the console can't sign in
    at the provider."""
    oidc_scope: str = "openid"
    """Scopes that the console requests when users sign in, separated by spaces. Must contain `openid`."""
    oidc_claim: str = "roles"
    """Claim from which rights follow. `realm_access.roles` is a claim in a claim."""
    oidc_rights: dict[str, str] = {}
    """Rights for each value of the claim, as a JSON object: value -> `metrics`, `viewer`, `operator`, `admin`, or
    `write:STREAM`."""
    oidc_keys_refresh_s: float = Field(default=300.0, gt=0)
    """Seconds between two reads of the provider's keys. A token whose signing key was withdrawn is refused within this time."""
    oidc_keys_grace_s: float = Field(default=86_400.0, ge=0)
    """Seconds for which the provider's keys stay valid while they can't be read."""
    allow_unauthenticated: bool = False
    """True to listen on other addresses than loopback without logins, because the network is protected."""
    tokens_refresh_s: float = Field(default=2.0, gt=0)
    """Seconds between two reads of the tokens. A revoked token is refused within this time."""
    tokens_grace_s: float = Field(default=900.0, ge=0)
    """Seconds for which known tokens stay valid while the ledger doesn't respond. After that, requests get 503."""
    streams_refresh_s: float = Field(default=2.0, gt=0)
    """Seconds between two reads of the streams by a gateway."""
    confirm_timeout_s: float = Field(default=1.5, gt=0)
    """Seconds without a confirmation of Kafka for a stream, after which a gateway answers 503. The timeout is five times as long
    if Kafka is only slow."""
    spool_bytes_max: int = Field(default=1024 * 1024 * 1024, ge=1024)
    """Maximum size of the spool of a gateway in bytes. One stream can use eight ninths of it, so that a flood leaves space for
    other streams."""
    check_bytes_max: int = Field(default=1024 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Maximum memory in bytes for a REST request that checks documents, runs a preview, or reads sampled records. A request that
    needs more is refused."""
    check_s: float = Field(default=30.0, gt=0)
    """Maximum time in seconds for such a request. A request that needs longer is refused."""
    lease_s: float = Field(default=8.0, ge=1, le=300)
    """Time in seconds for which a control service leads a job without renewing the lease. After it, another service takes over,
    and a runner without a sign of life is replaced (120 s before its first sign). Must be equal for all services of a ledger."""
    slices_kept_days_min: int = Field(default=1, ge=0)
    """Minimum number of days for which the ledger keeps slices, even if nothing needs them."""
    slices_kept_days_max: int = Field(default=31, ge=1)
    """Maximum number of days for which the ledger keeps slices that no rewind and no reader of a stream of results needs. Audits
    and backfills can read back so far, or as far as the streams keep their records, if that is less."""
    standbys: int = Field(default=1, ge=0, le=8)
    """Number of warm Spark sessions that a control service keeps for the next start of a job; 0 for none. Each uses about 1.2 GB
    of memory after its warm-up."""
    jobs_per_pool: int = Field(default=100, ge=1, le=1_000)
    """Maximum number of jobs that share one runner, a pool. 1: each job has its own runner."""
    own_runners: str = ""
    """Jobs that never share a runner, separated by commas."""
    pool_slice_s_max: float = Field(default=30.0, gt=0)
    """Maximum time in seconds for which a worker of a pool works on one slice. A job that needs longer is moved to its own
    runner."""
    pool_state_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Maximum size of the open state of a job in a pool, in bytes. A job with a larger one is moved to its own runner."""
    pool_cores_max: float = Field(default=0.5, gt=0)
    """Maximum number of cores that the slices of a job in a pool need over 30 s. A job that needs more is moved to its own
    runner, which uses all cores for it. Jobs with `placement: pool` stay."""
    scratch_dir: Path | None = None
    """Directory for Spark's scratch checkpoint and state, and for tables of audits. Its loss does no harm, and a tmpfs is faster.
    Default: below the data directory."""
    snapshot_dir: Path | None = None
    """Directory for the Spark checkpoints of jobs with `recovery: snapshot`. Control services that share it resume the jobs of
    each other. Default: `snapshots` below the data directory; on a cluster, below `SPARK_CHECKPOINT_DIR`."""
    spark_master: str = "local[*,4]"
    """Spark master of jobs: `local[*,4]` (all cores of this machine, four attempts of a task), or the URL of a cluster."""
    spark_driver_memory: str = "1g"
    """Heap size of the Spark driver of a job."""
    spark_driver_host: str | None = None
    """Name or address under which the executors of a cluster reach the driver of a job. Default: the address from which this
    machine reaches the master of a `spark://` URL."""
    spark_cores: int = Field(default=2, ge=1)
    """Number of cores of a cluster for each job, standby, and backfill. The state of a job is divided into as many parts."""
    spark_checkpoint_dir: Path | None = None
    """Directory for Spark checkpoints on a cluster. The machines of the driver and of all executors must share it under the same
    path. Required on a cluster."""
    audit_memory_mb: int = Field(default=1024, ge=256)
    """Maximum memory of the database of an audit in MB. The rest is stored in the scratch directory."""
    slice_rows_max: int = Field(default=1_000_000, ge=1)
    """Approximate maximum number of records in a slice."""
    slice_tasks: Literal["spread", "one"] = "spread"
    """Tasks that compute a slice. `spread`: tasks on all cores read the records and exchange them by key; for jobs with many
    records. `one`: one task reads and computes the whole slice, for a third of the CPU time of a small slice. Jobs with
    `recovery: snapshot` always use `spread`."""
    slice_interval_ms: int = Field(default=200, ge=0)
    """Minimum time in milliseconds between the plans of two new slices of a job, for pipelines without `checkpoint.every`. A
    larger value makes fewer and larger slices."""
    log_bytes_max: int = Field(default=20 * 1024 * 1024, ge=64 * 1024)
    """Maximum size of a log file in bytes. The content of a larger file is moved to `NAME.log.1`, and older content to
    `NAME.log.2` and so on."""
    logs_max: int = Field(default=3, ge=0, le=100)
    """Number of older log files for each process, and of files that crashed JVMs left."""
    log_json: bool = False
    """True to write log lines as JSON objects."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_cloud_id(cls, values: Any) -> Any:
        """Set the URL from the cloud id. Raises ValueError for an invalid id. Raises InvalidSettings if both are set
        and differ.
        """
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
        """Read the environment, and the files that it names for secrets."""
        return init_settings, env_settings, _SecretFiles(settings_cls)

    @classmethod
    def read(cls) -> Self:
        """Read the environment. Raises InvalidSettings, which names the first invalid variable and contains no values of other
        variables.

        Workers and runs call this often, so the result is kept until a variable or a file of a secret changes.
        """
        environment = {name: value for name, value in os.environ.items() if name.upper().startswith(_PREFIX)}
        files = secret_files(secret_names(cls))
        known = _read.get(cls)
        if known is not None and known[:2] == (environment, files):
            kept: Self = known[2]
            return kept
        settings = cls._read_now()
        # A file that is rewritten twice in a moment can look the same after the second time.
        if all(time.time_ns() - changed_ns > _FILE_AGE_NS for _, changed_ns, _ in files):
            _read[cls] = environment, files, settings
        return settings

    @classmethod
    def _read_now(cls) -> Self:
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
    """Content of the files that `STRANDLINE_NAME_FILE` names, for each setting that can contain a secret."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Implement the method of the base class. `__call__` returns all values."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        environment = {name.upper(): value for name, value in os.environ.items() if name.upper().startswith(_PREFIX)}
        found: dict[str, Any] = {}
        secrets = secret_names(self.settings_cls)
        for name in self.settings_cls.model_fields:
            variable = f"{_PREFIX}{name.upper()}"
            if name not in secrets and f"{variable}_FILE" in environment:
                raise InvalidSettings(
                    f"{variable}_FILE is set, but only secrets can be in files; set {variable} instead"
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
    """Create the data directory with access for its owner only, because it contains records, logs, and tokens. An existing
    directory is not changed. Raises OSError."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)


@cache
def secret_names(kind: type[BaseSettings]) -> tuple[str, ...]:
    """Return the settings of this class that can contain a secret. Each can be in a file. None is displayed or passed on."""
    return tuple(
        name
        for name, field in kind.model_fields.items()
        if name in _URLS_WITH_SECRETS
        or name in _MAPS_WITH_SECRETS
        or SecretStr in (field.annotation, *get_args(field.annotation))
    )


def secret_files(names: tuple[str, ...]) -> tuple[tuple[str, int, int], ...]:
    """Return the files that contain these settings now, each with values that change when the file is replaced. Compare them to
    detect a new secret."""
    found = []
    for name in names:
        path = os.environ.get(f"{_PREFIX}{name.upper()}_FILE")
        if path is not None:
            found.append(stamp_of(Path(path)))
    return tuple(found)


def stamp_of(path: Path) -> tuple[str, int, int]:
    """Return values that change when a file is replaced or rewritten."""
    try:
        state = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), state.st_mtime_ns, state.st_ino


def _url_of_cloud_id(cloud_id: str) -> str:
    """Return the URL for a cloud id, which is `NAME:` and base64 of `HOST[:PORT]$ELASTICSEARCH$KIBANA`."""
    try:
        text = base64.b64decode(cloud_id.rpartition(":")[2], validate=True).decode("ascii")
        domain, deployment = text.split("$")[:2]
    except ValueError:
        domain = deployment = ""
    if not domain or not deployment:
        raise InvalidSettings(
            "STRANDLINE_ELASTICSEARCH_CLOUD_ID is wrong: it is not a cloud id; copy it from the deployment's "
            "page in Elastic Cloud"
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
            f'{variable} is wrong: it is not JSON; write an object, for example {{"client.rack": "a"}}'
        ) from None
