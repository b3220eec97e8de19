"""Expressions and aggregates for `tests.support.some_pipelines`, each with what it means in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.support.oracle import Aggregate, Expression

ALWAYS = Expression("true", (), lambda: True)
CONDITIONS = (
    Expression("power is null or power < 60", ("power",), lambda p: p is None or p < 60),
    Expression("site = 'north'", ("site",), lambda s: s == "north"),
    Expression("kind <> 'x'", ("kind",), lambda k: k != "x"),
    Expression("count % 3 <> 0", ("count",), lambda c: None if c is None else c % 3 != 0),
    Expression("10 / (count + 1) < 5", ("count",), lambda c: _divided(10, c, 1)),
    Expression("tags is not null and size(tags) > 1", ("tags",), lambda t: t is not None and len(t) > 1),
    Expression("machine in ('m0', 'm1', 'm3')", ("machine",), lambda m: m in ("m0", "m1", "m3")),
    Expression("owner is null or owner <> 'b'", ("owner",), lambda o: o != "b"),
    Expression("team = 'red'", ("team",), lambda t: None if t is None else t == "red"),
    Expression("power < budget", ("power", "budget"), lambda p, b: None if p is None or b is None else p < b),
)
DERIVED: dict[str, tuple[str, Expression]] = {
    "load": ("double", Expression("power / count", ("power", "count"), lambda p, c: _quotient(p, c))),
    "half": ("double", Expression("power * 0.5e0", ("power",), lambda p: None if p is None else p * 0.5)),
    "tags_n": ("integer", Expression("if(tags is null, 0, size(tags))", ("tags",), lambda t: len(t or ()))),
    "tag": ("long", Expression("array_max(tags)", ("tags",), lambda t: max(t) if t else None)),
    "place": (
        "string",
        Expression(
            "concat(machine, '-', coalesce(site, '?'))",
            ("machine", "site"),
            lambda m, s: f"{m}-{'?' if s is None else s}",
        ),
    ),
    "large": ("boolean", Expression("power > 8", ("power",), lambda p: None if p is None else p > 8)),
    "rate": ("double", Expression("rated / (count - 2)", ("rated", "count"), lambda r, c: _quotient(r, c, 2))),
    "share": ("double", Expression("power / quota", ("power", "quota"), lambda p, q: _quotient(p, q))),
}
AGGREGATES: dict[str, Aggregate] = {
    "n": Aggregate("count(*)", (), len),
    "seen": Aggregate("count(power)", ("power",), lambda rows: len(_known(rows))),
    "power": Aggregate("sum(power)", ("power",), lambda rows: _sum(rows)),
    "total": Aggregate("sum(count)", ("count",), lambda rows: _sum(rows)),
    "most": Aggregate("max(power)", ("power",), lambda rows: max(_known(rows), default=None)),
    "least": Aggregate("min(count)", ("count",), lambda rows: min(_known(rows), default=None)),
    "noise": Aggregate("sum(noise)", ("noise",), lambda rows: _sum(rows)),
    "mean": Aggregate("avg(power)", ("power",), lambda rows: _mean(rows)),
    "opened": Aggregate("first(power)", ("power",), lambda rows: next(iter(_known(rows)), None)),
    "closed": Aggregate("last(site)", ("site",), lambda rows: next(iter(_known(rows[::-1])), None)),
    "sites": Aggregate("count(distinct site)", ("site",), lambda rows: len(set(_known(rows)))),
    "at_peak": Aggregate("max_by(site, power)", ("site", "power"), lambda rows: next(iter(_greatest(rows, 1)), None)),
    "some": Aggregate("collect_list(power, 3)", ("power",), lambda rows: _known(rows)[:3]),
    "top": Aggregate("top_n(noise, 2)", ("noise",), lambda rows: sorted(_known(rows), reverse=True)[:2]),
    "tops": Aggregate("top_n_by(site, power, 2)", ("site", "power"), lambda rows: _greatest(rows, 2)),
    "warm": Aggregate(
        "count(*) filter (where power > 0)", ("power",), lambda rows: sum(one > 0 for one in _known(rows))
    ),
    "warm_power": Aggregate(
        "sum(power) filter (where kind = 'a')",
        ("power", "kind"),
        lambda rows: _sum([(power,) for power, kind in rows if kind == "a"]),
    ),
    "usual": Aggregate("most_frequent(kind, 2)", ("kind",), lambda rows: _usual(rows)),
    "bins": Aggregate("histogram(power, -50, 50, 4)", ("power",), lambda rows: _bins(_known(rows))),
    "middle": Aggregate("median(power)", ("power",), lambda rows: _median(_known(rows))),
    "loads": Aggregate("max(load)", ("load",), lambda rows: max(_known(rows), default=None)),
    "tags": Aggregate("sum(tag)", ("tag",), lambda rows: _sum(rows)),
    "quotas": Aggregate("sum(quota)", ("quota",), lambda rows: _sum(rows)),
    "budgets": Aggregate("sum(budget)", ("budget",), lambda rows: _sum(rows)),
    "rated": Aggregate("max(rated)", ("rated",), lambda rows: max(_known(rows), default=None)),
    "teams": Aggregate("count(distinct team)", ("team",), lambda rows: len(set(_known(rows)))),
    "owned": Aggregate("last(owner)", ("owner",), lambda rows: next(iter(_known(rows[::-1])), None)),
}
BEHIND = (
    ("where", Expression("n > 1", ("n",), lambda n: n > 1)),
    ("where", Expression("10 / (n - 3) < 5", ("n",), lambda n: _divided(10, n, -3))),
    ("each", Expression("most / (n - 2)", ("most", "n"), lambda m, n: _quotient(m, n, 2))),
    ("twice", Expression("n * 2", ("n",), lambda n: n * 2)),
)
"""Steps behind windows: a condition, or a new column."""
COMPARISONS = {
    "power_before": Aggregate("lag(power)", ("power",), lambda rows: rows[0][0] if len(rows) > 1 else None),
    "power_step": Aggregate("delta(power)", ("power",), lambda rows: _difference(rows, resets=False)),
    "power_used": Aggregate("increase(power)", ("power",), lambda rows: _difference(rows, resets=True)),
}
"""Aggregates of a record and the record before it."""


def _difference(rows: list[tuple[Any, ...]], *, resets: bool) -> Any:
    """Return the last value minus the one before. `resets`: if it is less, the counter began again from 0."""
    if len(rows) < 2 or None in (rows[0][0], rows[1][0]):
        return None
    (before,), (value,) = rows
    return value if resets and value < before else value - before


LATER: dict[str, Aggregate] = {
    "n": Aggregate("sum(n)", ("n",), lambda rows: _sum(rows)),
    "most": Aggregate("max(most)", ("most",), lambda rows: max(_known(rows), default=None)),
    "least": Aggregate("min(least)", ("least",), lambda rows: min(_known(rows), default=None)),
    "power": Aggregate("sum(power)", ("power",), lambda rows: _sum(rows)),
    "noise": Aggregate("sum(noise)", ("noise",), lambda rows: _sum(rows)),
    "busy": Aggregate("count(*) filter (where n > 2)", ("n",), lambda rows: sum(n > 2 for (n,) in rows)),
    "parts": Aggregate("count(*)", (), len),
}
"""Aggregates of windows after windows that don't depend on the order of results with the same time."""
TYPES_OF_AGGREGATES = {
    "n": "long",
    "closed": "string",
    "at_peak": "string",
    "sites": "long",
    "warm": "long",
    "least": "long",
}
"""Types of the aggregates by which later windows can group."""


def _known(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [one for (one, *_) in rows if one is not None]


def _sum(rows: Sequence[tuple[Any, ...]]) -> Any:
    known = _known(rows)
    return sum(known) if known else None


def _mean(rows: Sequence[tuple[Any, ...]]) -> float | None:
    known = _known(rows)
    return sum(known) / len(known) if known else None


def _greatest(rows: Sequence[tuple[Any, ...]], n: int) -> list[Any]:
    known = [(value, by) for value, by in rows if by is not None]
    return [value for value, _ in sorted(known, key=lambda one: -one[1])[:n]]


def _usual(rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    counts = Counter(_known(rows))
    return [
        {"value": value, "count": counts[value]} for value in sorted(counts, key=lambda one: (-counts[one], one))[:2]
    ]


def _bins(values: Sequence[float]) -> list[int]:
    found = [0] * 6
    for value in values:
        found[0 if value < -50 else 5 if value >= 50 else 1 + int((value + 50) // 25)] += 1
    return found


def _median(values: Sequence[float]) -> float | None:
    ordered, half = sorted(values), len(values) // 2
    if not ordered:
        return None
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _quotient(over: float | None, under: int | None, less: int = 0) -> float | None:
    return None if over is None or under is None else over / (under - less)


def _divided(over: int, under: int | None, more: int) -> bool | None:
    return None if under is None else over / (under + more) < 5
