"""An example of each kind of window, for the tests that must cover all kinds."""

from __future__ import annotations

WINDOWS = {
    "tumbling": "tumbling: 7h, offset: 5h",
    "sliding": "sliding: {size: 9h, every: 2h}",
    "cumulative": "cumulative: {size: 12h, step: 2h}",
    "session": "session: {gap: 1h, max: 9h}",
    "count": "count: {size: 3, max: 1d}",
    "previous": "previous: {within: 2h}",
    "shifts": "shifts: ['06:00', '13:30', '22:00']",
    "tumbling in a time zone": "tumbling: 1d, tz: Europe/Berlin",
    "cumulative in a time zone": "cumulative: {size: 1d, step: 1h}, tz: Europe/Berlin",
}
"""Field of `window` -> an example."""
