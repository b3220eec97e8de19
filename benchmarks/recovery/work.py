"""What goes in, what is computed, and what must come out.

Work W1 with a first window of one second, so that there is a new result every second: readings of 1,000 devices, 1 s windows a
device, then windows of a minute or an hour of those. Record `i` of the live feed has event time `i / rate`: it is in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

DEVICES = 1_000
RATE = 20_000
"""Records a second of the live feed."""
DELAY_MS = 2_000
WINDOW_MS = 1_000
ORIGIN_MS = 1_700_006_400_000
"""Event time begins at a full hour, so that an hour's window is open during the whole run."""
PRELOAD_DEVICES = 10
PRELOAD_MS = 50 * 60_000
"""The event time of what is in the log beforehand, if anything is."""


def stream_text(name: str) -> str:
    return f"""\
stream: {name}
partitions: 4
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
"""


def pipeline_text(name: str, reach: str, recovery: str) -> str:
    """`reach` is the size of the second window."""
    return f"""\
pipeline: {name}
input: {{stream: {name}}}
event_time: {{field: ts, delay: {DELAY_MS}ms, max_ahead: null}}
recovery: {recovery}
steps:
  - window: {{name: second, tumbling: 1s, by: [device], aggregate: {{n: count(*), mean: avg(temp)}}}}
    emit: [{{elasticsearch: {name}-second}}]
  - window: {{name: longer, tumbling: {reach}, by: [device], aggregate: {{n: sum(n), peak: max(mean)}}}}
    emit: [{{elasticsearch: {name}-longer}}]
"""


Number = TypeVar("Number", int, NDArray[np.int64])


def preloaded_ms(number: Number, preload: int) -> Number:
    """The event time of the record of this number, of `preload` records that are in the log beforehand."""
    return ORIGIN_MS + number * PRELOAD_MS // max(1, preload)


@dataclass(frozen=True)
class Sent:
    """What a feed has written: first what was there beforehand, then the live records."""

    preload: int
    live: int

    @property
    def live_from_ms(self) -> int:
        return ORIGIN_MS + (PRELOAD_MS if self.preload else 0)

    @property
    def latest_ms(self) -> int:
        """The newest event time."""
        return self.live_from_ms + max(0, self.live - 1) * 1_000 // RATE

    def counts(self) -> dict[tuple[int, int], int]:
        """(end of the window, number of the device) -> records."""
        found: Counter[tuple[int, int]] = Counter()
        preload, live = np.arange(self.preload), np.arange(self.live)
        for event_ms, device in (
            (preloaded_ms(preload, self.preload), preload % PRELOAD_DEVICES),
            (self.live_from_ms + live * 1_000 // RATE, live % DEVICES),
        ):
            keys, counts = np.unique(event_ms // WINDOW_MS * DEVICES + device, return_counts=True)
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
                found[(key // DEVICES + 1) * WINDOW_MS, key % DEVICES] += count
        return dict(found)


@dataclass(frozen=True)
class Verdict:
    """The results held against what was sent, up to the last window that is there."""

    results: int
    """Distinct ones that are there."""
    repeated: int
    """Documents beyond the first of a result."""
    lost: int
    wrong: int
    """Documents with another count."""


def judge(sent: Sent, documents: Iterable[tuple[int, int, int]]) -> Verdict:
    """`documents`: (window end, device, n) of each."""
    held: dict[tuple[int, int], list[int]] = {}
    for end_ms, device, n in documents:
        held.setdefault((end_ms, device), []).append(n)
    last_ms = max((end_ms for end_ms, _ in held), default=0)
    expected = {key: n for key, n in sent.counts().items() if key[0] <= last_ms}
    return Verdict(
        results=len(held),
        repeated=sum(len(found) - 1 for found in held.values()),
        lost=len(expected.keys() - held.keys()),
        wrong=sum(1 for key, found in held.items() for n in found if n != expected.get(key)),
    )
