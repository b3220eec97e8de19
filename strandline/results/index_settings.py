"""Settings of an emission's indices, in addition to their mapping.

Imports nothing: every Python worker loads this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

REPLICAS_DEFAULT = "0-1"
"""No replica on a cluster of one node, which can't store one; one replica as soon as there is a second node."""


@dataclass(frozen=True)
class IndexSettings:
    """Settings that an index has from its creation. A change applies to indices that are created later."""

    shards: int = 1
    replicas: int | str = REPLICAS_DEFAULT
    """Number of replicas. A string such as `0-1` or `0-all` sets bounds: as many as there are other nodes."""
    refresh_interval_ms: int | None = None
    """None for Elasticsearch's default: every second while there are searches."""
    lifecycle: str | None = None
    """Name of a policy of Elasticsearch's index lifecycle management."""
    updates_ms: int | None = None
    """Interval in ms at which open windows are written to an additional index. None for never."""

    def as_settings(self) -> dict[str, Any]:
        """Return the settings for a request to Elasticsearch."""
        # Without coercion, 3.7 in a long field is refused, not truncated to 3.
        settings: dict[str, Any] = {"index.number_of_shards": self.shards, "index.mapping.coerce": False}
        if isinstance(self.replicas, int):
            settings["index.number_of_replicas"] = self.replicas
        else:
            settings["index.auto_expand_replicas"] = self.replicas
        if self.refresh_interval_ms is not None:
            settings["index.refresh_interval"] = f"{self.refresh_interval_ms}ms"
        if self.lifecycle is not None:
            settings["index.lifecycle.name"] = self.lifecycle
        return settings


INDEX_SETTINGS_DEFAULT = IndexSettings()
