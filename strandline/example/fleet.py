"""A simulated wind farm. Its reports are a pure function of its seed and of event time, so the weather is the same in every
run.

About one report in a hundred is spoiled on purpose, like failures of real sensors. `FaultKind` contains the reason of the dead
letter that a spoiled report must become, so that the example can compare the two.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_FUTURE_EVENT, REASON_LATE, REASON_SCHEMA

TICK_MS = 10_000
"""Every turbine reports once in this much event time, at a random moment. So reports are out of order by up to this time."""
RATED_POWER_KW = 3_000.0
HOUR_MS = 3_600_000
SITES = ("dune", "harbour", "moor", "ridge")
TURBINES_PER_SITE = 10
SPOILED_SHARE = 0.01
LATE_BY_MS = 86_400_000
AHEAD_BY_MS = 366 * 86_400_000
"""Error of a turbine's clock that is a year ahead."""


class FaultKind(Enum):
    """Kinds of spoiled reports, and the reason that the dead letter must have."""

    BROKEN_JSON = ("broken JSON", REASON_DECODE)
    NOT_A_NUMBER = ("NaN", REASON_DECODE)
    WRONG_TYPE = ("wrong type", REASON_SCHEMA)
    MISSING_FIELD = ("missing field", REASON_SCHEMA)
    NEGATIVE_POWER = ("negative power", REASON_SCHEMA)
    FUTURE = ("a year ahead", REASON_FUTURE_EVENT)
    LATE = ("a day late", REASON_LATE)

    def __init__(self, label: str, reason: str) -> None:
        self.label = label
        self.reason = reason


@dataclass(frozen=True)
class Report:
    """One report of one turbine: a line of NDJSON, without the newline."""

    site: str
    turbine: str
    line: bytes
    spoiled: FaultKind | None


Reading = dict[str, str | int | float]


class Fleet:
    """Forty turbines on four sites."""

    def __init__(self, seed: int = 1, spoiled_share: float = SPOILED_SHARE) -> None:
        self._seed = seed
        self._spoiled_share = spoiled_share
        self._turbines = [(site, f"{site}-{number:02}") for site in SITES for number in range(1, TURBINES_PER_SITE + 1)]
        self._waves = {site: list(_waves(random.Random(f"{seed}:{site}"))) for site in SITES}  # noqa: S311 - weather

    def reports(self, tick: int, late_allowed: bool = True) -> list[Report]:
        """Return the reports of the turbines for the ten seconds that begin at `tick * TICK_MS`, in the order of sending.

        Args: late_allowed: False if no report may be late. Without a watermark, no report would count as late.
        """
        chance = random.Random(f"{self._seed}:{tick}")  # noqa: S311 - noise
        return [self._report(site, turbine, tick, chance, late_allowed) for site, turbine in self._turbines]

    def wind(self, site: str, event_ms: int) -> float:
        """Return the wind at a site in m/s: slow and quick waves over a mean of 9, never below 0."""
        gusts = sum(height * math.sin(event_ms / period_ms + phase) for height, period_ms, phase in self._waves[site])
        return max(0.0, 9.0 + gusts)

    def _report(self, site: str, turbine: str, tick: int, chance: random.Random, late_allowed: bool) -> Report:
        event_ms = tick * TICK_MS + chance.randrange(TICK_MS)
        wind = max(0.0, self.wind(site, event_ms) + chance.gauss(0.0, 0.4))
        in_service = _is_in_service(self._seed, turbine, event_ms // HOUR_MS)
        power = 0.0 if in_service else power_kw(wind)
        reading: Reading = {
            "turbine": turbine,
            "site_id": site,
            "ts": event_ms,
            "state": "service" if in_service else "running",
            "power": round(power, 1),
            "wind": round(wind, 2),
            "temperature": round(35.0 + 30.0 * power / RATED_POWER_KW + chance.gauss(0.0, 0.5), 1),
        }
        if chance.random() >= self._spoiled_share:
            return Report(site, turbine, msgspec.json.encode(reading), None)
        kinds = [kind for kind in FaultKind if late_allowed or kind is not FaultKind.LATE]
        spoiled = chance.choice(kinds)
        return Report(site, turbine, _spoil(reading, spoiled), spoiled)


def power_kw(wind: float) -> float:
    """Return the power: zero below 3 m/s, then rising with the cube of the wind to the rated power at 12 m/s, zero above 25."""
    if wind < 3.0 or wind > 25.0:
        return 0.0
    return RATED_POWER_KW * min(1.0, (wind**3 - 27.0) / (12.0**3 - 27.0))


def _waves(chance: random.Random) -> Iterator[tuple[float, float, float]]:
    """Yield the waves of the wind: height (m/s), period (ms of event time, over 2 pi), and phase."""
    for height, hours in ((3.0, 31.0), (2.0, 7.3), (1.0, 1.1), (0.6, 0.2)):
        period_ms = hours * chance.uniform(0.8, 1.2) * HOUR_MS / (2 * math.pi)
        yield height, period_ms, chance.uniform(0.0, 2 * math.pi)


@functools.lru_cache(maxsize=1024)
def _is_in_service(seed: int, turbine: str, hour: int) -> bool:
    """Return True if a turbine is in service, for one hour in fifty."""
    return random.Random(f"{seed}:{turbine}:{hour}").random() < 0.02  # noqa: S311 - a schedule


def _spoil(reading: Reading, spoiled: FaultKind) -> bytes:
    match spoiled:
        case FaultKind.BROKEN_JSON:
            return msgspec.json.encode(reading)[:-9]
        case FaultKind.NOT_A_NUMBER:
            power = msgspec.json.encode(reading["power"])
            return msgspec.json.encode(reading).replace(b'"power":' + power, b'"power":NaN')
        case FaultKind.WRONG_TYPE:
            return msgspec.json.encode({**reading, "power": "n/a"})
        case FaultKind.MISSING_FIELD:
            return msgspec.json.encode({name: value for name, value in reading.items() if name != "turbine"})
        case FaultKind.NEGATIVE_POWER:
            return msgspec.json.encode({**reading, "power": -12.5})
        case FaultKind.FUTURE:
            return msgspec.json.encode({**reading, "ts": int(reading["ts"]) + AHEAD_BY_MS})
        case FaultKind.LATE:
            return msgspec.json.encode({**reading, "ts": int(reading["ts"]) - LATE_BY_MS})
