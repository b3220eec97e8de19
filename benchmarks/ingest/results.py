"""Measurements of a gateway, as a row for people, with the goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Row = Sequence[str]
HEADER: Row = (
    "feed",
    "records/s",
    "gateway CPU-s per M records",
    "ack p50 / p99 ms at half load",
    "lost",
    "Kafka CPU-s per M",
    "cores used by others",
    "the load alone reaches records/s",
    "goal",
)


@dataclass(frozen=True)
class Goal:
    """Goals of the issue and the docs. None: no goal of that kind."""

    records_a_second: float
    cpu_s_per_million: float | None = None
    latency_p99_s: float | None = None
    lost_share: float | None = None


class Loaded(Protocol):
    """Common measurements of every load."""

    @property
    def records(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def gateway_cpu_s(self) -> float: ...
    @property
    def kafka_cpu_s(self) -> float: ...
    @property
    def other_cpu_s(self) -> float: ...
    @property
    def latency_p50_s(self) -> float: ...
    @property
    def latency_p99_s(self) -> float: ...


@dataclass(frozen=True)
class Measured:
    """One feed: the rate at full load, and the latency at half load."""

    name: str
    records_a_second: float
    cpu_s_per_million: float
    kafka_cpu_s_per_million: float
    latency_p50_s: float | None
    """None if there is no acknowledgement."""
    latency_p99_s: float | None
    load_ceiling: float
    """Records per second that the load generator reaches with a responder that does nothing."""
    other_cores: float
    """Cores that other programs used in the same time. If they used much, the measurement has little meaning."""
    goal: Goal
    lost: int = 0
    """Records that were sent, not refused, and are not in the topic. The gateway or the kernel counts all of them."""
    sent: int = 0

    @classmethod
    def of(cls, name: str, full: Loaded, half: Loaded, ceiling: float, goal: Goal) -> Measured:
        millions = full.records / 1e6
        return cls(
            name=name,
            records_a_second=full.records / full.seconds,
            cpu_s_per_million=full.gateway_cpu_s / millions,
            kafka_cpu_s_per_million=full.kafka_cpu_s / millions,
            latency_p50_s=half.latency_p50_s,
            latency_p99_s=half.latency_p99_s,
            load_ceiling=ceiling,
            other_cores=full.other_cpu_s / full.seconds,
            goal=goal,
            sent=full.records,
        )

    def row(self) -> Row:
        latency = "none"
        if self.latency_p50_s is not None and self.latency_p99_s is not None:
            latency = f"{self.latency_p50_s * 1e3:.1f} / {self.latency_p99_s * 1e3:.1f}"
        return (
            self.name,
            f"{self.records_a_second:,.0f}",
            f"{self.cpu_s_per_million:.1f}",
            latency,
            f"{self.lost / self.sent:.3%}" if self.lost else "0",
            f"{self.kafka_cpu_s_per_million:.1f}",
            f"{self.other_cores:.1f}",
            f"{self.load_ceiling:,.0f}",
            self.goal_text(),
        )

    def goal_text(self) -> str:
        """Return each goal, and whether it was reached."""
        goal = self.goal
        parts = [_verdict(f">= {goal.records_a_second:,.0f}/s", self.records_a_second >= goal.records_a_second)]
        if goal.cpu_s_per_million is not None:
            parts.append(
                _verdict(f"<= {goal.cpu_s_per_million:g} CPU-s", self.cpu_s_per_million <= goal.cpu_s_per_million)
            )
        if goal.latency_p99_s is not None:
            is_soon = self.latency_p99_s is not None and self.latency_p99_s <= goal.latency_p99_s
            parts.append(_verdict(f"p99 <= {goal.latency_p99_s * 1e3:g} ms", is_soon))
        if goal.lost_share is not None:
            parts.append(_verdict(f"<= {goal.lost_share:.1%} lost", self.lost <= goal.lost_share * self.sent))
        return ", ".join(parts)

    def summary(self) -> str:
        return ", ".join(f"{title}: {value}" for title, value in zip(HEADER, self.row(), strict=True))


def _verdict(aim: str, is_reached: bool) -> str:
    return f"{aim} {'reached' if is_reached else 'missed'}"
