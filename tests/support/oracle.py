"""Meaning of a pipeline, in plain Python over all records: without slices, state, or the platform's code.

An expression has its SQL text and a function of a row. An aggregate has a function of the rows of a window, in the
order of event time and of the log. The arguments of both define the result for a missing value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

Columns = dict[str, Any]
Place = tuple[int, int, int]
"""Position of a record: index of its stream, partition, offset."""


@dataclass(frozen=True)
class Expression:
    sql: str
    reads: tuple[str, ...]
    of: Callable[..., Any]
    """Function of the values that it reads. None if they are all present: a record has no value, and fails."""

    def value(self, row: Columns) -> Any:
        """Raises ZeroDivisionError where the record fails."""
        values = [row[name] for name in self.reads]
        found = self.of(*values)
        if found is None and None not in values:
            raise ZeroDivisionError
        return found


@dataclass(frozen=True)
class Aggregate:
    sql: str
    reads: tuple[str, ...]
    of: Callable[[list[tuple[Any, ...]]], Any]
    """Function of the values that it reads in each row."""


@dataclass(frozen=True)
class Row:
    """A record, or a result of a window or a join."""

    columns: Columns
    at_ms: int
    """Event time of the row; for a result, its last moment."""
    place: Place | None = None
    window: tuple[int, int] | None = None
    is_repeat: bool = False
    """True if it is processed only to detect whether a step fails for it."""
    is_late: bool = False
    """True if it arrived after the watermark and counts anyway."""
    lookups: Mapping[str, Version] = field(default_factory=dict)
    """For a record: the lookups at the time of its arrival."""
    origins: frozenset[Place] = frozenset()
    """For a result: the records that it contains."""

    @property
    def records(self) -> frozenset[Place]:
        """The records that the row contains."""
        return self.origins if self.place is None else frozenset([self.place])

    @property
    def at_us(self) -> int:
        """Time in microseconds. A result has the last microsecond of its window, after all records there."""
        return self.at_ms * 1000 + (0 if self.window is None else 999)


@dataclass(frozen=True)
class Sent:
    """A record in the log. `columns` None: it can't be read."""

    stream: int
    partition: int
    line: bytes
    at_ms: int
    columns: Columns | None


@dataclass(frozen=True)
class Version:
    """The rows of a lookup that are in force for a while."""

    number: int
    rows: Mapping[tuple[Any, ...], Columns]
    """By their keys. A field that a version doesn't declare is in none of them."""
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Applied:
    """A lookup is applied with these rows."""

    lookup: str
    key: tuple[str, ...]
    fields: tuple[str, ...]
    rows: tuple[Columns, ...]


@dataclass(frozen=True)
class Told:
    """A record of a stream that a lookup follows."""

    partition: int
    key: bytes
    value: bytes | None
    """None: a tombstone."""
    changes: tuple[Any, ...] | None
    """The key of the row that it changes; None: it can be no row, and changes nothing."""
    row: Columns | None = None
    """What it leaves there; None: nothing, it deletes the row."""


@dataclass(frozen=True)
class Followed:
    """The stream that a lookup follows is read, and these records have come to it since it was read before."""

    lookup: str
    records: tuple[Told, ...]


Log = Sequence[Sent | Applied | Followed]
"""In their order: each lookup changes between two records."""


Lineage = tuple[str, tuple[int, int] | None, frozenset[Place]]
"""Stage of a result, its window in ms (None for a record), and the records that it contains."""


@dataclass
class Answer:
    """Result of a pipeline."""

    documents: Counter[str] = field(default_factory=Counter)
    """Documents as text, each with its number."""
    letters: dict[Place, str] = field(default_factory=dict)
    """Records that could not be used -> reason."""
    lineage: Counter[Lineage] = field(default_factory=Counter)
    """Emitted results, each with its records."""


@dataclass(frozen=True)
class EventTimes:
    """Event times of one stream."""

    delay_ms: int
    idle_ms: int | None


def late_ones(log: Sequence[Sent], times: Sequence[EventTimes], revise_ms: int) -> dict[int, bool]:
    """Return the indices of late records -> True if they count anyway.

    Each is evaluated by earlier records, and log time is event time (docs/desk.md).
    """
    reached: dict[tuple[int, int], int] = {}
    came: dict[tuple[int, int], int] = {}
    late: dict[int, bool] = {}
    now_ms, watermark_ms = -1, -1

    def by_rule(newcomer: bool, filled: tuple[int, int] | None = None) -> int:
        """`filled`: a partition with a record whose lateness isn't known yet."""
        if not reached or newcomer:
            return -1
        silence = {at: 0 if at == filled else now_ms - came[at] for at in reached}
        idle_ms = {at: times[at[0]].idle_ms for at in reached}
        awake = [at for at in reached if (idle := idle_ms[at]) is None or silence[at] < idle]
        if awake:
            return min(reached[at] - times[at[0]].delay_ms for at in awake)
        (one,) = times
        assert one.idle_ms is not None
        over_ms = min(silence.values()) - one.idle_ms
        run_on_ms = min(reached.values()) + over_ms
        if over_ms >= one.idle_ms:
            run_on_ms = max(run_on_ms, max(reached.values()) + over_ms - one.idle_ms)
        return run_on_ms - one.delay_ms

    for number, sent in enumerate(log):
        at = sent.stream, sent.partition
        if sent.columns is None:
            continue
        now_ms = max(now_ms, sent.at_ms)
        watermark_ms = max(watermark_ms, by_rule(at not in reached, at))
        if sent.at_ms < watermark_ms:
            late[number] = sent.at_ms >= watermark_ms - revise_ms
        if number not in late or at not in came:
            came[at] = now_ms
        if late.get(number, True):
            reached[at] = max(sent.at_ms, reached.get(at, 0))
        watermark_ms = max(watermark_ms, by_rule(False))
    return late


def in_force(log: Log, first: Mapping[str, Version]) -> list[Mapping[str, Version]]:
    """Return for each record the lookups at the time of its arrival. `first`: before the log begins.

    A record after a change is enriched with the new version, and earlier records stay unchanged (docs/lookups.md).
    """
    now, found = dict(first), list[Mapping[str, Version]]()
    for one in log:
        match one:
            case Sent():
                found.append(dict(now))
                continue
            case Applied():
                rows = {tuple(row[name] for name in one.key): row for row in one.rows}
                fields = one.fields
            case Followed():
                rows, fields = latest_rows(now[one.lookup].rows, one.records), now[one.lookup].fields
        before = now[one.lookup]
        if (rows, fields) != (before.rows, before.fields):
            now[one.lookup] = Version(before.number + 1, rows, fields)
    return found


def latest_rows(before: Mapping[tuple[Any, ...], Columns], records: Sequence[Told]) -> dict[tuple[Any, ...], Columns]:
    """The row of a key is the latest record with that key."""
    rows = dict(before)
    for record in records:
        if record.changes is not None:
            rows.pop(record.changes, None)
            if record.row is not None:
                rows[record.changes] = record.row
    return rows


@dataclass(frozen=True)
class Step:
    """A step of a pipeline: what a document says, and what it means."""

    document: dict[str, Any]
    takes: tuple[int, ...]
    """The steps that it takes from; -1 and below the streams."""
    means: Callable[..., Iterator[Row]]
    """Function of the rows of each input, and of the function that reports the failing row."""
    emits: str | None = None
    """The stage whose results it emits."""


def answer(
    steps: Sequence[Step],
    log: Log,
    times: Sequence[EventTimes],
    streams: Sequence[str],
    revise_ms: int = 0,
    lookups: Mapping[str, Version] = MappingProxyType({}),
    late: Mapping[int, bool] | None = None,
) -> Answer:
    """Return the result of the log.

    Args: revise_ms: Time after the watermark for which records still count. lookups: Before the log begins. late: Index of a late
    record -> True if it counts anyway. None: as `late_ones` says. Without a window, a join, or dedupe, no record is late
    (docs/event-time.md).
    """
    records = [one for one in log if isinstance(one, Sent)]
    found, versions = Answer(), in_force(log, lookups)
    if not any({"window", "join", "dedupe"} & step.document.keys() for step in steps):
        late = {}
    elif late is None:
        late = late_ones(records, times, revise_ms)
    offsets: Counter[tuple[int, int]] = Counter()
    rows: dict[int, list[Row]] = {-1 - at: [] for at in range(len(streams))}
    for number, sent in enumerate(records):
        place = (sent.stream, sent.partition, offsets[sent.stream, sent.partition])
        offsets[sent.stream, sent.partition] += 1
        if sent.columns is None:
            found.letters[place] = "unreadable"
        elif not late.get(number, True):
            found.letters[place] = "late"
        else:
            row = Row(sent.columns, sent.at_ms, place, is_late=number in late, lookups=versions[number])
            rows[-1 - sent.stream].append(row)
    for number, step in enumerate(steps):

        def fail(row: Row, reason: str) -> None:
            if row.place is not None:
                found.letters.setdefault(row.place, reason)

        rows[number] = list(step.means(*([*rows[at]] for at in step.takes), fail))
        if step.emits is not None:
            shown = [row for row in rows[number] if not row.is_repeat]
            found.documents.update(_document(row, step.emits, streams) for row in shown)
            found.lineage.update((step.emits, row.window, row.records) for row in shown)
    return found


def _document(row: Row, stage: str, streams: Sequence[str]) -> str:
    shown: dict[str, Any] = {name: shown_value(value) for name, value in row.columns.items()}
    if row.window is not None:
        start, end = map(moment, row.window)
        return str(sorted({**shown, "@timestamp": end, "window": f"{start} {end}", "@stage": stage}.items()))
    assert row.place is not None
    place = f"{streams[row.place[0]]}/{row.place[1]}/{row.place[2]}"
    return str(sorted({**shown, "@timestamp": moment(row.at_ms), "@stage": stage, "@place": place}.items()))


def shown_value(value: Any) -> Any:
    """A value as it is compared: doubles whose sum depends on the order of records to 12 digits."""
    match value:
        case float():
            return f"{value + 0.0:.12g}"
        case list():
            return [shown_value(one) for one in value]
        case dict():
            return {name: shown_value(one) for name, one in value.items()}
    return value


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


# Steps


def derived(columns: Mapping[str, Expression]) -> Callable[..., Iterator[Row]]:
    def means(rows: list[Row], fail: Callable[[Row, str], None]) -> Iterator[Row]:
        for row in rows:
            try:
                more = {name: one.value(row.columns) for name, one in columns.items()}
            except ZeroDivisionError:
                fail(row, "expression")
            else:
                yield replace(row, columns={**row.columns, **more})

    return means


def mapped(reads: Sequence[str], of: Callable[..., Columns | None]) -> Callable[..., Iterator[Row]]:
    """`of`: the new columns of the values that it reads; None where the function fails."""

    def means(rows: list[Row], fail: Callable[[Row, str], None]) -> Iterator[Row]:
        for row in rows:
            more = of(*(row.columns[name] for name in reads))
            if more is None:
                fail(row, "expression")
            else:
                yield replace(row, columns={**row.columns, **more})

    return means


def filtered(condition: Expression) -> Callable[..., Iterator[Row]]:
    def means(rows: list[Row], fail: Callable[[Row, str], None]) -> Iterator[Row]:
        for row in rows:
            try:
                if condition.value(row.columns):
                    yield row
            except ZeroDivisionError:
                fail(row, "expression")

    return means


def chosen(names: Sequence[str]) -> Callable[..., Iterator[Row]]:
    def means(rows: list[Row], _fail: object) -> Iterator[Row]:
        return (replace(row, columns={name: row.columns[name] for name in names}) for row in rows)

    return means


def emitted() -> Callable[..., Iterator[Row]]:
    return lambda rows, _fail: iter(rows)


def united(names: Sequence[str], means: Callable[..., Iterator[Row]]) -> Callable[..., Iterator[Row]]:
    """A step that takes from several, with the columns that all have."""

    def of_all(*parts: Any) -> Iterator[Row]:
        *rows, fail = parts
        return means(list(chosen(names)([row for part in rows for row in part], fail)), fail)

    return of_all


def enriched(lookup: str, key: Sequence[str], add: Mapping[str, str], optional: bool) -> Callable[..., Iterator[Row]]:
    """`key`: the columns with it, in the lookup's order; `add`: column -> field of the lookup."""

    def means(rows: list[Row], fail: Callable[[Row, str], None]) -> Iterator[Row]:
        for row in rows:
            version = row.lookups[lookup]
            known = version.rows.get(tuple(row.columns[name] for name in key))
            if known is None and not optional:
                fail(row, f"{lookup} has no row (version {version.number})")
            else:
                more = {name: (known or {}).get(of) for name, of in add.items()}
                yield replace(row, columns={**row.columns, **more})

    return means


def without_duplicates(by: Sequence[str], within_ms: int) -> Callable[..., Iterator[Row]]:
    """A repeat has one with equal fields before it in its partition that is less than `within_ms` away."""

    def means(rows: list[Row], _fail: object) -> Iterator[Row]:
        seen: dict[Any, list[int]] = defaultdict(list)
        for row in sorted(rows, key=_log_order):
            assert row.place is not None
            values = tuple(row.columns[name] for name in by)
            if None in values:
                yield row
                continue
            before = seen[row.place[:2], values]
            yield replace(row, is_repeat=any(abs(at_ms - row.at_ms) < within_ms for at_ms in before))
            before.append(row.at_ms)

    return means


def _records_of(rows: Sequence[Row]) -> frozenset[Place]:
    return frozenset(place for row in rows for place in row.records)


def _log_order(row: Row) -> Any:
    return row.place or ()


# Windows


def windows_of(shape: Mapping[str, Any], offset_ms: int) -> Callable[[int], list[tuple[int, int]]]:
    """The windows that hold a moment. `shape`: the kind, and its sizes in milliseconds."""

    def holding(at_ms: int) -> list[tuple[int, int]]:
        at_ms -= offset_ms
        match shape:
            case {"tumbling": size}:
                found = [(at_ms // size * size, size)]
            case {"sliding": (size, every)}:
                last = at_ms // every * every
                found = [(start, size) for start in range(last, last - size, -every) if start + size > at_ms]
            case {"days": (zone, days)}:
                return [day_of(at_ms + offset_ms, ZoneInfo(zone), days, offset_ms)]
            case {"days so far": (zone, days, step)}:
                start, end = day_of(at_ms + offset_ms, ZoneInfo(zone), days, offset_ms)
                return [(start, one) for one in range(start + step, end + 1, step) if one > at_ms + offset_ms]
            case {"last days": (zone, days)}:
                return last_days(at_ms + offset_ms, ZoneInfo(zone), days, offset_ms)
            case {"cumulative": (size, step)}:
                start = at_ms // size * size
                found = [(start, length) for length in range(step, size + 1, step) if start + length > at_ms]
        return [(start + offset_ms, start + offset_ms + length) for start, length in found]

    return holding


def day_of(at_ms: int, zone: ZoneInfo, days: int, offset_ms: int) -> tuple[int, int]:
    """Return the range of `days` days of a zone that contains a moment.

    It begins at the time of day of the offset, if clocks show it once.
    """
    offset = timedelta(milliseconds=offset_ms)
    first = (datetime.fromtimestamp(at_ms / 1000, zone).replace(tzinfo=None) - offset).toordinal()
    first -= (first - date(1970, 1, 1).toordinal()) % days
    ends = [datetime.fromordinal(one) + offset for one in (first, first + days)]
    start, end = (round(one.replace(tzinfo=zone).timestamp() * 1000) for one in ends)
    return start, end


def last_days(at_ms: int, zone: ZoneInfo, days: int, offset_ms: int) -> list[tuple[int, int]]:
    """Return the ranges of `days` days of a zone, one beginning with each day, that contain a moment."""
    first = day_of(at_ms, zone, 1, offset_ms)
    starts, ends = [first[0]], [first[1]]
    for _ in range(days - 1):
        starts.append(day_of(starts[-1] - 1, zone, 1, offset_ms)[0])
        ends.append(day_of(ends[-1], zone, 1, offset_ms)[1])
    return list(zip(starts[::-1], ends, strict=True))


def windowed(
    shape: Mapping[str, Any],
    offset_ms: int,
    by: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    *,
    is_revised: bool = False,
) -> Callable[..., Iterator[Row]]:
    """`is_revised`: each result also says how many of its records were late."""

    def means(rows: list[Row], _fail: object) -> Iterator[Row]:
        rows = [row for row in rows if not row.is_repeat]
        groups: dict[Any, list[Row]] = defaultdict(list)
        if "session" in shape:
            groups |= sessions(rows, by, *shape["session"])
        elif "count" in shape:
            groups |= counted(rows, by, *shape["count"])
        elif "previous" in shape:
            groups |= with_previous(rows, by, shape["previous"])
        else:
            holding = windows_of(shape, offset_ms)
            for row in rows:
                for start, end in holding(row.at_ms):
                    groups[start, end, *(row.columns[name] for name in by)].append(row)
        for (start, end, *key), inside in groups.items():
            inside.sort(key=lambda row: (row.at_ms, _log_order(row)))
            values = {
                name: one.of([tuple(row.columns[read] for read in one.reads) for row in inside])
                for name, one in aggregates.items()
            }
            if is_revised:
                values["revision"] = sum(row.is_late for row in inside)
            columns = {**dict(zip(by, key[: len(by)], strict=True)), **values}
            yield Row(columns, end - 1, window=(start, end), origins=_records_of(inside))

    return means


def sessions(rows: list[Row], by: Sequence[str], gap_ms: int, max_ms: int) -> dict[tuple[Any, ...], list[Row]]:
    """(start, end, key): by one walk over each key's rows in the order of time. `max_ms` is a multiple of the gap."""
    of_keys: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        of_keys[tuple(row.columns[name] for name in by)].append(row)
    found: dict[tuple[Any, ...], list[Row]] = {}
    for key, of_key in of_keys.items():
        of_cut: dict[tuple[int, int], list[Row]] = defaultdict(list)
        last_ms = first_cut = -(10**15)
        for row in sorted(of_key, key=lambda row: row.at_ms):
            if row.at_ms - last_ms >= gap_ms:
                first_cut = row.at_ms // gap_ms * gap_ms + max_ms
            cut = first_cut if row.at_ms < first_cut else (row.at_ms // max_ms + 1) * max_ms
            of_cut[first_cut, cut].append(row)
            last_ms = row.at_ms
        for (_, cut), inside in of_cut.items():
            found[inside[0].at_ms, min(inside[-1].at_ms + gap_ms, cut), *key] = inside
    return found


def counted(rows: list[Row], by: Sequence[str], size: int, max_ms: int) -> dict[tuple[Any, ...], list[Row]]:
    """Return (start, end, key, number) -> `size` rows each, in the order of time and of the log. Counting restarts each
    `max_ms`.

    The number distinguishes windows with the same times.
    """
    of_keys: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        of_keys[row.at_ms // max_ms, *(row.columns[name] for name in by)].append(row)
    found: dict[tuple[Any, ...], list[Row]] = {}
    for (turn, *key), of_key in of_keys.items():
        of_key.sort(key=lambda row: (row.at_ms, _log_order(row)))
        for first in range(0, len(of_key), size):
            inside = of_key[first : first + size]
            end_ms = inside[-1].at_ms + 1 if len(inside) == size else (turn + 1) * max_ms
            found[inside[0].at_ms, end_ms, *key, first] = inside
    return found


def with_previous(rows: list[Row], by: Sequence[str], within_ms: int) -> dict[tuple[Any, ...], list[Row]]:
    """Return (start, end, key, number) -> a row, after the row of its key before it if that is at most `within_ms` earlier.

    Rows are in the order of time and of the log.
    """
    before: dict[tuple[Any, ...], Row] = {}
    found: dict[tuple[Any, ...], list[Row]] = {}
    for number, row in enumerate(sorted(rows, key=lambda row: (row.at_ms, _log_order(row)))):
        key = tuple(row.columns[name] for name in by)
        last = before.get(key)
        inside = [row] if last is None or row.at_ms - last.at_ms > within_ms else [last, row]
        found[inside[0].at_ms, row.at_ms + 1, *key, number] = inside
        before[key] = row
    return found


# Joins


def joined(
    on: Sequence[str], near: Mapping[str, Any], kind: str, add: Mapping[str, tuple[int, str]]
) -> Callable[..., Iterator[Row]]:
    """`near`: `tumbling`, or `before` and `after`, in milliseconds, and whether it is the `latest`; `add`: name -> side and
    column."""
    size_ms, before_ms, after_ms = near.get("tumbling"), near.get("before", 0), near.get("after", 0)

    def windows(sides: tuple[Row | None, Row | None]) -> tuple[int, int]:
        known = [(row, hold) for row, hold in zip(sides, (after_ms, before_ms), strict=True) if row is not None]
        times = [row.at_ms for row, _ in known]
        if size_ms is not None:
            return times[0] // size_ms * size_ms, times[0] // size_ms * size_ms + size_ms
        hold_ms = known[0][1] if len(known) == 1 else 0
        return min(times), max(times) + hold_ms + 1

    def row_of(left: Row | None, right: Row | None) -> Row:
        some = left or right
        assert some is not None
        sides = left, right
        taken = {
            name: None if (row := sides[side]) is None else row.columns[column] for name, (side, column) in add.items()
        }
        window = windows(sides)
        columns = {**{name: some.columns[name] for name in on}, **taken}
        return Row(
            columns, window[1] - 1, window=window, origins=_records_of([one for one in sides if one is not None])
        )

    def means(lefts: list[Row], rights: list[Row], _fail: object) -> Iterator[Row]:
        of_key: dict[Any, list[int]] = defaultdict(list)
        for number, row in enumerate(rights):
            key = tuple(row.columns[name] for name in on)
            if None not in key:
                of_key[key].append(number)
        met: set[int] = set()
        for left in lefts:
            partners = []
            for number in of_key.get(tuple(left.columns[name] for name in on), ()):
                right = rights[number]
                if size_ms is not None:
                    is_near = left.at_ms // size_ms == right.at_ms // size_ms
                else:
                    is_near = -before_ms * 1000 <= right.at_us - left.at_us <= after_ms * 1000
                if is_near:
                    partners.append(number)
            if near.get("latest") and partners:
                partners = [max(partners, key=lambda number: (rights[number].at_ms, _log_order(rights[number])))]
            met.update(partners)
            yield from (row_of(left, rights[number]) for number in partners)
            if not partners and kind != "inner":
                yield row_of(left, None)
        if kind == "full":
            for number, right in enumerate(rights):
                if number not in met:
                    yield row_of(None, right)

    return means
