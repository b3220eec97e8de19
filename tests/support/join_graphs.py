"""Pipelines with a join of two ways from the stream `machines`, drawn at random."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.step_graphs import Steps


def some_join(random: Random) -> Steps:
    """A join of two paths, with or without windows after it and in parallel."""
    steps: Steps = [
        {"where": random.choice(["power > 0", "site is not null", "true"]), "name": "lefts"},
        {"derive": {"load": random.choice(["power / 2", "count * 1.5"])}, "from": "machines"},
        {"where": random.choice(["load < 1e12", "load is null or load > 0", "true"]), "name": "rights"},
    ]
    join = a_join(random)
    steps += [{"join": join} | ({"emit": [{"elasticsearch": "met"}]} if random.random() < 0.7 else {})]
    if random.random() < 0.5:
        steps.append({"derive": {"both": "power + load"}})
    if random.random() < 0.3:
        steps.append({"where": "power is null or power > 1"})
    if random.random() < 0.3 and len(steps) > 4 and "emit" not in steps[3]:
        steps.append({"emit": [{"elasticsearch": "behind"}]})
    by = random.choice([join["on"], join["on"][:1], ["site_right"], []])
    aggregate = {
        "n": "count(*)",
        "power": "sum(power)",
        "load": "sum(load)",
        "first": "first(load)",
        "last": "last(power)",
    }
    steps.append(
        {
            "window": {"name": "windows", **random.choice(WINDOWS_BEHIND), "by": by, "aggregate": aggregate},
            "emit": [{"elasticsearch": "windows"}],
        }
    )
    if random.random() < 0.4:
        aggregate = {"n": "count(*)", "power": "sum(power)"}
        window = {"name": "beside", "tumbling": "10s", "by": ["machine"], "aggregate": aggregate}
        steps.append(
            {"window": window, "from": random.choice(["machines", "lefts"]), "emit": [{"elasticsearch": "beside"}]}
        )
    return steps


WINDOWS_BEHIND: list[dict[str, Any]] = [
    {"tumbling": "20s"},
    {"sliding": {"size": "40s", "every": "20s"}},
    {"session": {"gap": "25s", "max": "2m"}},
]


def a_join(random: Random) -> dict[str, Any]:
    """Named `met`, of `lefts` and `rights`."""
    near: dict[str, Any] = {"within": {"before": random.choice(TIMES), "after": random.choice(TIMES)}}
    more: dict[str, Any] = {"type": random.choice(["inner", "left", "full"])}
    more["max_rows"] = random.choice([1, 2, 5, 10_000, 10_000])
    if random.random() < 0.25:
        near = {"within": {"before": random.choice(TIMES[1:]), "after": "0s"}, "latest": True}
        more = {"type": random.choice(["inner", "left"]), "max_rows": 10_000}
    return {
        "name": "met",
        "left": "lefts",
        "right": "rights",
        "on": random.choice([["machine"], ["machine", "site"], ["site"]]),
        **(near if "latest" in near or random.random() < 0.7 else {"tumbling": random.choice(["5s", "20s"])}),
        **more,
        "add": {"power": "left.power", "load": "right.load", "site_right": "right.site", "at": "left.ts"}
        | ({"grade": "right.count"} if random.random() < 0.5 else {}),
    }


TIMES = ["0s", "1ms", "1s", "3s", "15s"]
