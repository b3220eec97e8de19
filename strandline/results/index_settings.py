"""What an emission says of its indices beside their mapping. Imports nothing: every Python worker loads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

REPLICAS_DEFAULT = "0-1"
"""None on a cluster of one node, which has nowhere to put one; one as soon as there is a second node."""


@dataclass(frozen=True)
class IndexSettings:
    """Settings that an index has from its beginning. What changes here counts for indices that are made later."""

    shards: int = 1
    replicas: int | str = REPLICAS_DEFAULT
    """How many; a text as `0-1` or `0-all`: as many as there are other nodes, within these bounds."""
    refresh_interval_ms: int | None = None
    """None leaves it to Elasticsearch: every second while somebody searches."""
    lifecycle: str | None = None
    """The name of a policy of Elasticsearch's index lifecycle management."""
    updates_ms: int | None = None
    """How often windows that are still open are shown, in an index beside these; None is never."""

    def as_settings(self) -> dict[str, Any]:
        """As Elasticsearch takes them."""
        # Without coercion 3.7 in a long field is refused, not cut to 3.
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
