"""The settings that all our consumers share: partitions are assigned by hand, and Kafka keeps no position of theirs."""

from __future__ import annotations

from typing import Any


def consumer_settings(name: str) -> dict[str, Any]:
    """The shared settings of the consumer of this name; the caller adds the brokers and its own."""
    return {
        "group.id": f"strandline-{name}",  # the client demands one; the group is never joined
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "allow.auto.create.topics": False,
        "auto.offset.reset": "error",  # a missing offset is a failure to report, never a place to jump from
        # After its queue was full, a consumer waits so long before it fetches again; by default a whole second.
        "fetch.queue.backoff.ms": 5,
    }
