"""Settings: each process reads them once, at its start, from the environment (`STRANDLINE_*`). All other code receives
values, never the environment. docs/operating.md lists every setting, and a test compares the two.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from strandline.core.errors import InvalidSettings


def _default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/strandline")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "strandline"


def _default_cache_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/strandline")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strandline"


class Settings(BaseSettings):
    """What a process of Strandline needs to know. The defaults are the embedded stack on loopback."""

    model_config = SettingsConfigDict(env_prefix="STRANDLINE_", frozen=True, use_attribute_docstrings=True)

    data_dir: Path = Field(default_factory=_default_data_dir)
    """Where every file of the embedded stack lies: servers, sockets, logs, databases."""
    cache_dir: Path = Field(default_factory=_default_cache_dir)
    """Where the fetched servers are kept between stacks; may be deleted at any time while no stack runs."""
    kafka_bootstrap: str = "127.0.0.1:9092"
    """The Kafka brokers, `host:port` separated by commas."""
    stream_replication: int = Field(default=1, ge=1)
    """Replicas of each topic that Strandline makes."""
    elasticsearch_url: str = "http://127.0.0.1:9200"
    """The results store."""
    ledger_url: str = "sqlite:///strandline-ledger.sqlite"
    """SQLAlchemy URL of the ledger's database: `sqlite:///FILE` or `postgresql+psycopg://...`. May hold a password."""
    control_host: str = "127.0.0.1"
    """The address on which the REST API listens. Off loopback it takes AUTH, or ALLOW_OPEN, as every listener does."""
    control_port: int = 8080
    """The port of the REST API."""
    http_host: str = "127.0.0.1"
    """The address on which the HTTP gateway listens."""
    http_port: int = 8081
    """The port of the HTTP gateway."""
    gateway_names: tuple[str, ...] = ()
    """Host names under which gateways take records by HTTP and answer `/metrics`, beside addresses, those of loopback,
    `http_host` and the machine's own; `*` for any. `/healthz` and `/readyz` always answer under any name."""
    http_body_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024)
    """A larger request body is refused with 413 before it is read whole."""
    http_connections_max: int = Field(default=10_000, ge=1)
    """Connections that the HTTP gateway keeps open; over it the one that has waited longest for a request is closed.
    Less if the system allows the process fewer open files."""
    record_bytes_max: int = Field(default=1_000_000, ge=1024, le=40_000_000)
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
    """Value of that claim -> `viewer`, `operator`, `admin` or `write:STREAM`, as a JSON object."""
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
