"""The load: what is sent to the log, by partition, at different speeds, and what an outage holds up.

Some records are late on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.log import Log, Record

START_MS = 1_700_000_040_000  # the beginning of a minute
MAX_AHEAD_MS = 60_000


class Load:
    """`left` records are still to be sent. In half of the histories event time is the clock, so that silence matters; in the
    others it runs on with each record."""

    def __init__(self, chance: random.Random, log: Log, records: int, delay_ms: int) -> None:
        self.chance = chance
        self.log = log
        self.left = records
        self.is_real_time = chance.random() < 0.5
        self.devices_off_ms: dict[str, int] = {}
        """Device -> what its clock is off by: far behind, or further ahead than any version takes."""
        self.quiet_until_ms = 0
        """No record comes before the monotonic clock shows it."""
        partitions = range(len(log.records))
        self.lags_ms = [chance.choice([0, 0, 1_000, 3 * delay_ms]) for _ in partitions]
        """How far event time in each partition is behind."""
        self.weights = [chance.choice([1, 1, 10]) for _ in partitions]
        """How fast each is filled."""
        self.spoiled: set[int] = set()
        """The partitions whose records can't be read now: their only device has other firmware."""
        self.fed = list(partitions)
        """The partitions that records come to now."""
        self._drawn = self._weighed()
        self._delay_ms = delay_ms
        self._event_ms = START_MS
        self._sent = 0
        self._held_up: list[tuple[int, Record]] = []
        """Sent while the brokers were away; their senders send again when they are back."""

    def send(self, now_ms: int, pass_time: Callable[[int], None], note: Callable[..., None]) -> None:
        """Some records. `now_ms` is the true time, which `pass_time` moves."""
        for _ in range(min(self.left, self.chance.randint(1, 5 if self.is_real_time else 20))):
            self.left -= 1
            passed_ms = self.chance.choice([0, 0, 1, 50])
            if passed_ms:
                now_ms += passed_ms
                pass_time(passed_ms)
            partition = self._partition()
            record = self._record(partition, now_ms)
            if self.log.away_ms is not None:
                self._held_up.append((partition, record._replace(is_held_up=True)))
            else:
                self._append(partition, record)
            note("record", partition, record)

    def send_again(self, now_ms: int) -> None:
        """Send what was held up in an outage, when the brokers are available again."""
        for partition, record in self._held_up:
            self._append(partition, record._replace(log_ms=self._log_ms(now_ms)))
        self._held_up = []

    def turn(self) -> None:
        """From now on other partitions get records."""
        every = range(len(self.log.records))
        self.fed = sorted(self.chance.sample(every, self.chance.randint(1, len(every))))
        self._drawn = self._weighed()
        self.spoiled = {self.chance.choice(every)} if self.chance.random() < 0.2 else set()

    def add_partition(self) -> None:
        self.log.add_partition()
        self.lags_ms.append(0)
        self.weights.append(self.chance.choice([1, 1, 10]))
        self.fed.append(len(self.log.records) - 1)
        self._drawn = self._weighed()

    def _weighed(self) -> list[int]:
        """Each partition that is fed, as often as it is drawn."""
        return [one for one in self.fed for _ in range(self.weights[one])]

    def _partition(self) -> int:
        return self.chance.choice(self._drawn)

    def _record(self, partition: int, now_ms: int) -> Record:
        self._event_ms += self.chance.choice([0, 100, 1_000, 3_000])
        newest_ms = now_ms if self.is_real_time else self._event_ms
        back_ms = self.chance.choice([0, 0, 0, 500, self._delay_ms, 2 * self._delay_ms + 1, 90_000])
        device = self.chance.choice("abc")
        off_ms = self.devices_off_ms.get(device, 0)
        behind_ms = self.lags_ms[partition] + back_ms - min(off_ms, 0)
        event_ms = newest_ms - behind_ms
        log_ms = self._log_ms(now_ms)
        if off_ms > 0 or self.chance.random() < 0.01:
            event_ms = log_ms + 10 * MAX_AHEAD_MS
        self._sent += 1
        is_broken = self.chance.random() < 0.02 or partition in self.spoiled
        return Record(self._sent, log_ms, event_ms, device, self.chance.randint(0, 99), is_broken, behind_ms)

    def _log_ms(self, now_ms: int) -> int:
        """The brokers' time: never behind event time by more than their clock is off."""
        return (now_ms if self.is_real_time else max(now_ms, self._event_ms)) + self.log.clock_off_ms

    def _append(self, partition: int, record: Record) -> None:
        is_pending = partition in self.log.open_from
        self.log.append(partition, record._replace(is_held_up=True) if is_pending else record)
