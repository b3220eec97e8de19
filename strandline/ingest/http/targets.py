"""The request target: chooses the stream and the dialect of a request, once for each URL."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from strandline.ingest.http import influx_api, records_api, telemetry_api
from strandline.ingest.http.dialect import Target

TARGETS: tuple[Callable[[bytes], Target | None], ...] = (
    records_api.target_of,
    influx_api.target_of,
    telemetry_api.target_of,
)


@lru_cache(maxsize=1_000)
def target_of(url: bytes) -> Target | None:
    """Return the stream and the dialect of a request target. None if it doesn't append records."""
    return next((target for one in TARGETS if (target := one(url)) is not None), None)
