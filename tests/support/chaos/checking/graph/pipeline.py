"""The checker's knowledge of the graph job (`graph_job.py`): records of each branch, sessions, count windows, pairs of
a join, and windows by values of a lookup.

Doubles are added as described in `cascade.py`; in count windows, in the order in which these count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal

from tests.support.chaos.checking.cascade import Key, Result, added, load_of
from tests.support.chaos.checking.documents import iso
from tests.support.chaos.checking.graph.lookups import LOOKUP, rows_of, version_of
from tests.support.chaos.checking.judging import ClassifiedRecord, classify_reading
from tests.support.chaos.checking.pace import Pace, Windows
from tests.support.chaos.checking.pipelines import RULE, Pipeline
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Record, Row

SESSIONS, COUNTED, PAIRS, PLANS = STAGES = ("sessions", "counted", "pairs", "plans")
LEFT_BUSY, RIGHT_BUSY = 3, 2
"""How busy a record is on the left and on the right of the join."""
COUNT = 5
"""Number of records in a count window."""
ANYWHERE = Windows(1, 1)
"""Windows that end where a record says."""
Group = tuple[str | None, ...]


def graph(pace: Pace, stream: str) -> Pipeline:
    """Reads this stream."""
    short = Windows(pace.short_ms, pace.short_ms)
    return Pipeline(
        {SESSIONS: ANYWHERE, COUNTED: ANYWHERE, PAIRS: ANYWHERE, PLANS: short},
        RULE,
        classify_enriched,
        lambda judged, version: dict(_results(judged, pace, version, stream)),
        to_stream=SESSIONS,
        lookup=LOOKUP,
    )


def classify_enriched(record: Record, row: Row) -> ClassifiedRecord:
    """One whose site the lookup doesn't know is refused by the one branch that needs it, and comes to the others."""
    judged = classify_reading(record, row)
    if judged.member is None:
        return judged
    known = rows_of(version_of(row)).get(judged.member.get("site"))
    judged.member |= known or {"tariff": None, "plan": None}
    if known is None:
        judged.reason = "lookup"
        judged.taken_by = ",".join(_taken_by(judged.member, Version(row["version"]))) or None
    return judged


def _taken_by(member: Row, version: Version) -> Iterator[str]:
    """The stages to which a record comes that one branch refuses."""
    if member["load"] < version.load_below:
        yield from (SESSIONS, COUNTED)
        if member["busy"] in (LEFT_BUSY, RIGHT_BUSY):
            yield PAIRS


def _results(judged: list[ClassifiedRecord], pace: Pace, version: Version, stream: str) -> Iterator[tuple[Key, Result]]:
    """`judged` by partition and offset."""
    members = [one for one in judged if one.member is not None]
    chosen = [one for one in members if _row(one)["load"] < version.load_below]
    for (site,), of_site in _grouped(chosen, lambda row: (row.get("site"),)):
        for start_ms, end_ms, inside in sessions(of_site, pace):
            values = _values(inside, load_of(inside, pace.short_ms), version)
            yield (SESSIONS, end_ms, (site,)), Result(end_ms, {"site": site}, values, start_ms=start_ms)
    for (client,), of_client in _grouped(chosen, lambda row: (row.get("client"),)):
        for number, end_ms, inside in counted(of_client, pace):
            latest = {"latest": _row(inside[-1])["count"]}
            values = latest | _values(inside, added(_row(one)["load"] for one in inside), version)
            start_ms = _ms(inside[0])
            key = (COUNTED, end_ms, (client, f"{start_ms}/{number}"))
            yield key, Result(end_ms, {"client": client}, values, start_ms=start_ms, beside=(number,))
    for left, right, end_ms in pairs(chosen, pace):
        rows = "|".join("-" if one is None else _place(one, stream) for one in (left, right))
        client, start_ms = _row(left).get("client"), min(_ms(one) for one in (left, right) if one is not None)
        yield (
            (PAIRS, end_ms, (client, rows)),
            Result(end_ms, {"client": client}, _joined(left, right, version), start_ms=start_ms, beside=(rows,)),
        )
    planned = _grouped((one for one in members if _row(one)["plan"]), lambda row: (row["site"], row["plan"]))
    for (site, plan), of_plan in planned:
        ends: dict[int, list[ClassifiedRecord]] = defaultdict(list)
        for one in of_plan:
            ends[(_ms(one) // pace.short_ms + 1) * pace.short_ms].append(one)
        for end_ms, inside in ends.items():
            values = _values(inside, load_of(inside, pace.short_ms), version)
            yield (PLANS, end_ms, (site, plan)), Result(end_ms, {"site": site, "plan": plan}, values)


def sessions(members: Iterable[ClassifiedRecord], pace: Pace) -> Iterator[tuple[int, int, list[ClassifiedRecord]]]:
    """Yield start, end, and records, by partition and offset, of each session of one key, by docs/windows.md.

    A gap ends a session. A chain that continues is cut at the maximum length after its first record's pane, and then at
    each multiple of that length. The maximum length is an integer number of gaps, so a pane is as long as a gap.
    """
    gap_ms, max_ms = pace.short_ms, pace.long_ms
    inside: list[ClassifiedRecord] = []
    last_ms = cut_ms = 0

    def session() -> tuple[int, int, list[ClassifiedRecord]]:
        by_place = sorted(inside, key=lambda one: (one.record.partition, one.record.offset))
        return _ms(inside[0]), min(last_ms + gap_ms, cut_ms), by_place

    for one in sorted(members, key=_ms):
        at_ms = _ms(one)
        begins_chain = not inside or at_ms - last_ms >= gap_ms
        if begins_chain or at_ms >= cut_ms:
            if inside:
                yield session()
            inside = []
            cut_ms = at_ms // gap_ms * gap_ms + max_ms if begins_chain else (at_ms // max_ms + 1) * max_ms
        inside.append(one)
        last_ms = at_ms
    if inside:
        yield session()


def counted(members: Iterable[ClassifiedRecord], pace: Pace) -> Iterator[tuple[int, int, list[ClassifiedRecord]]]:
    """Yield number, end, and records of each count window of one key, in the order in which it counts.

    Counting restarts in each period.
    """
    periods: dict[int, list[ClassifiedRecord]] = defaultdict(list)
    for one in sorted(members, key=lambda one: (_ms(one), one.record.partition, one.record.offset)):
        periods[_ms(one) // pace.long_ms].append(one)
    for period, rows in periods.items():
        for number, first in enumerate(range(0, len(rows), COUNT)):
            inside = rows[first : first + COUNT]
            is_filled = len(inside) == COUNT
            yield number, _ms(inside[-1]) + 1 if is_filled else (period + 1) * pace.long_ms, inside


def pairs(
    members: list[ClassifiedRecord], pace: Pace
) -> Iterator[tuple[ClassifiedRecord, ClassifiedRecord | None, int]]:
    """Yield left row, right row, and end of each result of the join.

    A left row meets each right row of its client from a fifth of a short window before it to a whole one after it. A
    row without a partner ends when no partner can arrive any more.
    """
    rights: dict[str, list[ClassifiedRecord]] = defaultdict(list)
    for one in sorted(members, key=_ms):
        if _row(one)["busy"] == RIGHT_BUSY and (client := _row(one).get("client")) is not None:
            rights[client].append(one)
    for left in members:
        if _row(left)["busy"] != LEFT_BUSY:
            continue
        at_ms, of_client = _ms(left), rights.get(_row(left).get("client") or "", [])
        first = bisect_left(of_client, at_ms - pace.short_ms // 5, key=_ms)
        found = of_client[first : bisect_right(of_client, at_ms + pace.short_ms, key=_ms)]
        for right in found:
            yield left, right, max(at_ms, _ms(right)) + 1
        if not found:
            yield left, None, at_ms + pace.short_ms + 1


def _values(inside: list[ClassifiedRecord], load: float, version: Version) -> Row:
    """Return the common values of the windows. `load`: the sum of all."""
    rows = [_row(one) for one in inside]
    bills = [row["busy"] * row["tariff"] for row in rows if row["tariff"] is not None]
    return {
        "n": len(rows),
        "load": load / len(rows),
        "peak": max(float(row["power"]) for row in rows),
        "total": sum(row["count"] * version.times for row in rows),
        "cost": sum((Decimal(row["cost"]) for row in rows), Decimal(0)),
        "bill": sum(bills) if bills else None,
    }


def _joined(left: ClassifiedRecord, right: ClassifiedRecord | None, version: Version) -> Row:
    of_left, of_right = _row(left), {} if right is None else _row(right)
    return {
        "sent": of_left["id"],
        "began": iso(_ms(left)),
        "cost": Decimal(of_left["cost"]),
        "total": of_left["count"] * version.times,
        "tariff": of_left["tariff"],
        "answered": of_right.get("id"),
        "ended": None if right is None else iso(_ms(right)),
        "tariff_then": of_right.get("tariff"),
    }


def _grouped(
    members: Iterable[ClassifiedRecord], key: Callable[[Row], Group]
) -> list[tuple[Group, list[ClassifiedRecord]]]:
    groups: dict[Group, list[ClassifiedRecord]] = defaultdict(list)
    for one in members:
        groups[key(_row(one))].append(one)
    return list(groups.items())


def _row(one: ClassifiedRecord) -> Row:
    assert one.member is not None
    return one.member


def _ms(one: ClassifiedRecord) -> int:
    assert one.event_ms is not None
    return one.event_ms


def _place(one: ClassifiedRecord, stream: str) -> str:
    return f"{stream}/{one.record.partition}/{one.record.offset}"
