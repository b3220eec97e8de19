"""Pipelines that join results of windows over the stream `machines`, drawn at random."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.step_graphs import Steps

SHAPES: list[dict[str, Any]] = [
    {"tumbling": "5s"},
    {"tumbling": "10s"},
    {"sliding": {"size": "20s", "every": "5s"}},
    {"cumulative": {"size": "20s", "step": "10s"}},
    {"tumbling": "10s", "offset": "5s"},
    {"session": {"gap": "7s", "max": "20s"}},
    {"count": {"size": 3, "max": "20s"}},
]
KEYS = [["machine"], ["machine", "site"], ["site", "machine"]]
BEHIND: Steps = [{"where": "n > 1"}, {"derive": {"each": "power / (n - 2)"}}, {"where": "10 / (n - 3) < 5"}]
TIMES = ["0s", "1ms", "5s", "20s"]


def some_result_join(random: Random) -> Steps:
    """A window joined with another, with records, with a slower window behind it, or with itself; and perhaps once more."""
    shape, kind = random.choice(SHAPES), random.choice(["window", "same", "same", "slower", "records", "itself"])
    steps: Steps = []
    left = _side(random, steps, "lefts", "machines", shape, random.choice(KEYS))
    right = left
    if kind == "slower":
        slower = random.choice(
            [{"tumbling": "20s", "offset": shape.get("offset", "0s")}, {"session": {"gap": "25s", "max": "1m"}}]
        )
        right = _side(random, steps, "rights", left, slower, ["machine"])
    elif kind == "records":
        steps.append({"derive": {"n": "count"}, "from": "machines", "name": "rights"})
        right = "rights"
    elif kind != "itself":
        other = shape if kind == "same" else random.choice(SHAPES)
        right = _side(random, steps, "rights", "machines", other, random.choice(KEYS))
    is_equal = kind in ("same", "itself") and not {"session", "count"} & shape.keys()
    has_offset = any(step.get("window", {}).get("offset", "0s") != "0s" for step in steps)
    near: dict[str, Any] = {"within": {"before": random.choice(TIMES), "after": random.choice(TIMES)}}
    if is_equal and random.random() < 0.7:
        near = {"same_window": True}
    elif not has_offset and random.random() < 0.4:
        near = {"tumbling": "20s"}
    more: dict[str, Any] = {"type": random.choice(["inner", "left", "full"]), "max_rows": random.choice([1, 3, 10_000])}
    if "within" in near and random.random() < 0.3:
        near = {"within": {"before": random.choice(TIMES[1:])}, "latest": True}
        more = {"type": random.choice(["inner", "left"])}
    by = [step["window"]["by"] for step in steps if "window" in step]
    on = ["site", "machine"] if all("site" in names for names in by) and random.random() < 0.5 else ["machine"]
    sides = random.choice([(left, right), (right, left)])
    join = {
        "name": "met",
        "left": sides[0],
        "right": sides[1],
        "on": on,
        **near,
        "add": {"n": "left.n", "power": "right.power"},
    }
    steps.append({"join": join | more})
    is_taken = random.random() < 0.6
    if not is_taken or random.random() < 0.5:
        steps[-1]["emit"] = [{"elasticsearch": "met"}]
    if is_taken and random.random() < 0.4:
        again = {"name": "again", "left": "met", "right": random.choice(["lefts", "machines"]), "on": ["machine"]}
        again |= {"within": {"before": "10s", "after": "3s"}, "type": random.choice(["inner", "full"])}
        again |= {"add": {"n": "left.n", "power": "right.power"}}
        steps.append({"join": again, "emit": [{"elasticsearch": "again"}]})
    if is_taken:
        aggregate = {"rows": "count(*)", "power": "sum(power)", "last": "last(power)"}
        size: dict[str, Any] = {"tumbling": "40s", "offset": "5s" if has_offset else "0s"}
        window = {"name": "windows", **size, "by": random.choice([on, [], ["n"]]), "aggregate": aggregate}
        steps.append({"window": window, "from": "met", "emit": [{"elasticsearch": "windows"}]})
    return steps


def _side(random: Random, steps: Steps, name: str, source: str, shape: dict[str, Any], by: list[str]) -> str:
    """A window, some steps behind it, and its emission anywhere there or nowhere; the name to take from."""
    aggregate = (
        {"n": "count(*)", "power": "sum(power)"} if source == "machines" else {"n": "sum(n)", "power": "sum(power)"}
    )
    steps.append({"window": {"name": name, **shape, "by": by, "aggregate": aggregate}, "from": source})
    behind = [dict(one) for one in random.sample(BEHIND, random.choice([0, 0, 1, 2]))]
    if random.random() < 0.6:
        behind.insert(random.randint(0, len(behind)), {"emit": [{"elasticsearch": name}]})
    if behind and "emit" not in behind[-1]:
        behind[-1]["name"] = f"{name}_end"
    steps += behind
    return str(behind[-1].get("name", name)) if behind else name
