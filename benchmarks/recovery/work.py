"""Input, computation, and expected results.

Work W1 with a first window of one second, so that there is a new result every second. Readings of 1,000 devices, 1 s windows
per device, then windows of a minute or an hour of those. Record `i` of the live feed has event time `i / rate`, so the feed is
in order.
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
"""Records per second of the live feed."""
DELAY_MS = 2_000
WINDOW_MS = 1_000
ORIGIN_MS = 1_700_006_400_000
"""Start of event time: a full hour, so that an hour's window is open during the whole run."""
PRELOAD_DEVICES = 10
PRELOAD_MS = 50 * 60_000
"""Event time of the preloaded records in ms, if there are any."""


def stream_text(name: str) -> str:
    return f"""\
stream: {name}
partitions: 4
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
"""


def pipeline_text(name: str, reach: str, recovery: str) -> str:
    """Return the pipeline. `reach` is the size of the second window."""
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
    """Return the event time of the record with this number, of `preload` preloaded records."""
    return ORIGIN_MS + number * PRELOAD_MS // max(1, preload)


@dataclass(frozen=True)
class Sent:
    """Written records of a feed: the preloaded ones, then the live ones."""

    preload: int
    live: int

    @property
    def live_from_ms(self) -> int:
        return ORIGIN_MS + (PRELOAD_MS if self.preload else 0)

    @property
    def latest_ms(self) -> int:
        """Newest event time."""
        return self.live_from_ms + max(0, self.live - 1) * 1_000 // RATE

    def counts(self) -> dict[tuple[int, int], int]:
        """Return (end of the window, number of the device) -> number of records."""
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
    """Comparison of the results with the sent records, up to the last window with results."""

    results: int
    """Number of distinct results."""
    repeated: int
    """Number of documents beyond the first of a result."""
    lost: int
    wrong: int
    """Number of documents with another count."""


def judge(sent: Sent, documents: Iterable[tuple[int, int, int]]) -> Verdict:
    """Compare the results. `documents` are tuples of (window end, device, n)."""
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
