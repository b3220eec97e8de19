"""The metrics page of a gateway."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

DEADLINE_S = 120.0


@dataclass(frozen=True)
class Page:
    """Metrics of one gateway at one moment."""

    samples: list[tuple[str, dict[str, str], float]]

    @classmethod
    def read(cls, port: int) -> Page:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30, trust_env=False).text
        families = text_string_to_metric_families(text)
        return cls([(one.name, one.labels, one.value) for family in families for one in family.samples])

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with that name and those labels."""
        name = f"strandline_ingest_{name}"
        return sum(value for known, own, value in self.samples if known == name and labels.items() <= own.items())

    def latency_s(self, since: Page, stream: str, share: float) -> float:
        """Return the quantile `share` of the latencies since an earlier page, rounded up to a limit of the histogram."""
        limits = {
            labels["le"]: value - since.value("ack_latency_seconds_bucket", stream=stream, le=labels["le"])
            for name, labels, value in self.samples
            if name == "strandline_ingest_ack_latency_seconds_bucket" and labels["stream"] == stream
        }
        total = limits.get("+Inf", 0.0)
        return min((float(limit) for limit, count in limits.items() if count >= share * total), default=math.inf)


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
    """Wait until the condition is true. Raises RuntimeError after `within_s`."""
    deadline_s = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.1)


def is_answering(port: int) -> bool:
    """Return True if the page responds."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
