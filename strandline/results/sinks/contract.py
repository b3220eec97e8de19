"""Contract suite of a writer. Tests call it for each sink of Strandline and of packages (docs/add-a-sink.md).

Each check begins where the ones before it ended, in the same sink. A failed assertion says what an author has to correct.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from strandline.core.errors import Divergence, TransientError
from strandline.results.document import DocumentShape
from strandline.results.records.record_document import RecordShape
from strandline.results.writer import (
    ELEMENT,
    EVENT_US,
    OFFSET,
    PARTITION,
    WINDOW_END,
    WINDOW_START,
    CommittedWriter,
    Refused,
    StoreWriter,
)

_NOON_MS = 1_714_564_800_000
_DAY_MS = 86_400_000
_ROWS = 250
_LARGE = range(10_001, 11_201)
"""Rows of one batch that is larger than the usual pages of stores."""
_TOTAL = Decimal("1234567890123456789012345.0000000001")
_DIGESTS = {1: "9f86d081884c7d65", 2: "60303ae22b998861"}
"""Emission -> digest of its slice, if it isn't the digest of all others."""
_DIGEST = "ab530a13e4591498"
_FIELDS = (
    ("device", "string"),
    ("n", "long"),
    ("load", "double"),
    ("is_on", "boolean"),
    ("cost", "decimal(10,2)"),
    ("seen", "timestamp"),
    ("total", "decimal(38,10)"),
    ("note", "string"),
)


class SinkUnderTest(Protocol):
    """A new, empty instance of the sink."""

    @property
    def shape_changes(self) -> dict[str, object]:
        """Changes to the shape of its documents: `emit_name`, and `is_elsewhere` if it isn't an index."""

    def writer(self, shape: DocumentShape) -> StoreWriter:
        """Return a writer to the instance."""

    def ids(self) -> list[str]:
        """Return the ids of all results that readers of the sink see, with duplicates."""


class ReadableSink(SinkUnderTest, Protocol):
    """A sink whose values the suite can read. Optional."""

    def values(self) -> Mapping[str, Mapping[str, object]]:
        """Return id -> field -> value, as readers see it: an int, float, bool, str, Decimal, datetime with a time zone, or None.
        A decimal and a timestamp can also be text."""


class SinkWithOutage(SinkUnderTest, Protocol):
    """A sink whose server the suite can make unavailable. Optional."""

    def outage(self) -> AbstractContextManager[object]:
        """Return a context in which the server doesn't respond."""


def window_shape(sink: SinkUnderTest) -> DocumentShape:
    return replace(DocumentShape("contract", "job", "windows", 1, _FIELDS[:1], _FIELDS[1:]), **sink.shape_changes)  # type: ignore[arg-type]


def record_shape(sink: SinkUnderTest) -> RecordShape:
    shape = RecordShape("contract", "job", "records", 1, (), _FIELDS, input_streams=("farm",))
    return replace(shape, **sink.shape_changes)  # type: ignore[arg-type]


def batch_of(
    shape: DocumentShape, rows: Sequence[int], load: float | None = None, values: Mapping[str, Any] | None = None
) -> pa.RecordBatch:
    """Return these rows, over two days.

    Args: load: One value for all rows, instead of their own. values: Field -> value; only for a batch of one row.
    """
    times = [_NOON_MS + row % 2 * _DAY_MS for row in rows]
    if shape.has_window:
        columns = {
            WINDOW_START: pa.array([time - 60_000 for time in times], pa.int64()),
            WINDOW_END: pa.array(times, pa.int64()),
        }
    else:
        columns = {
            EVENT_US: pa.array([time * 1000 + 1 for time in times], pa.int64()),
            PARTITION: pa.array([1] * len(rows), pa.int32()),
            OFFSET: pa.array(list(rows), pa.int64()),
            ELEMENT: pa.array([None if row % 3 else row for row in rows], pa.int32()),
        }
    columns |= {
        "device": pa.array([f"t-{row}" for row in rows], pa.string()),
        "n": pa.array([None if row % 7 == 0 else row for row in rows], pa.int64()),
        "load": pa.array([row / 7 if load is None else load for row in rows], pa.float64()),
        "is_on": pa.array([row % 2 == 0 for row in rows], pa.bool_()),
        "cost": pa.array([row * 100 for row in rows], pa.decimal128(10, 2)),
        "seen": pa.array([time * 1000 for time in times], pa.timestamp("us", "UTC")),
        "total": pa.array([None if row % 5 == 0 else _TOTAL + row for row in rows], pa.decimal128(38, 10)),
        "note": pa.array([None if row % 4 == 0 else f"note {row} ü" for row in rows], pa.string()),
    }
    return pa.RecordBatch.from_pydict(
        columns | {name: pa.array([value], columns[name].type) for name, value in (values or {}).items()}
    )


_PAIRS: tuple[tuple[str, Any, Any], ...] = (
    ("n", 2**53 + 1, 2**53),
    ("n", -(2**63), -(2**63) + 1),
    ("n", None, 0),
    ("load", 0.1, math.nextafter(0.1, 1.0)),
    ("load", None, 0.0),
    ("is_on", None, False),
    ("total", _TOTAL, _TOTAL + Decimal("0.0000000001")),
    ("total", None, Decimal(0)),
    ("seen", _NOON_MS * 1000 + 1, _NOON_MS * 1000 + 2),
    ("seen", None, 0),
    ("note", None, ""),
    ("note", "a", "A"),
    ("note", "a", "a "),
    ("note", "e\u0301", "\u00e9"),
)
"""Field, and two values that a sink confuses if it rounds or loses values. Each is written, and the other one must differ."""


def check_sink(sink: SinkUnderTest, shape: DocumentShape) -> None:
    """Raise AssertionError unless a writer of the sink keeps the contracts of ResultWriter, StoreWriter, and
    CommittedWriter.

    1. It pickles, and `prepare` can be called again, also when the sink has results.
    2. A written result is stored once, also if another run, version, or task writes it again in other pieces. Without
       `is_once`, each run has its own results.
    3. A run that crashes before the commit leaves no results that count twice. A late commit of an earlier run changes nothing.
    4. The report counts each row as created, already written, or refused.
    5. A row that no store can contain is returned, and doesn't affect other rows.
    6. Another value under the same id is a Divergence, and changes nothing. This holds for each type, to the last digit.
    7. With `values` (`ReadableSink`): readers see the values that were written.
    8. With `outage` (`SinkWithOutage`): while the server doesn't respond, each call raises a TransientError. Afterwards, a
       repeated call writes each row once.
    """
    run = _Run(sink, shape)
    _check_repeats(run)
    _check_batches(run)
    _check_late_commit(run)
    _check_refusals(run)
    _check_divergence(run)
    for number, (name, value, other) in enumerate(_PAIRS):
        _check_pair(run, 100 + number, name, value, other)
    _check_versions(run)
    _check_parallel(run)
    _check_values(run)
    _check_outage(run)
    _check_other_guarantees(run)


@dataclass
class _Run:
    """The sink, with what it must contain."""

    sink: SinkUnderTest
    shape: DocumentShape

    def __post_init__(self) -> None:
        self.writer = self.new_writer()
        self.is_committed = isinstance(self.writer, CommittedWriter)
        self.wanted: Counter[str] = Counter()
        self.rows: dict[str, pa.RecordBatch] = {}
        """Id -> batch with only its row."""

    def new_writer(self, shape: DocumentShape | None = None) -> StoreWriter:
        """Return a writer as an executor gets it."""
        written = self.sink.writer(shape or self.shape)
        try:
            writer: StoreWriter = pickle.loads(pickle.dumps(written))  # noqa: S301
        except Exception as error:
            raise AssertionError(
                f"the writer doesn't pickle ({error!r}): keep names in it, and open connections in the methods"
            ) from error
        writer.prepare(None)
        writer.prepare(_NOON_MS)
        return writer

    def write(self, batches: Sequence[pa.RecordBatch], epoch: int, emission: int) -> list[str]:
        """Write the batches, check the report, and return its parts."""
        before = set(self.sink.ids())
        report = self.writer.write_batches(iter(batches), epoch, emission, _digest(emission))
        count = sum(batch.num_rows for batch in batches)
        assert report.refused == [], f"the writer refuses good rows: {report.refused[:1]}"
        assert report.rows == count, f"the report counts {report.rows} of {count} rows"
        if not self.is_committed:
            already = sum(one in before for one in ids_of(self.shape, batches, epoch))
            assert (report.created, report.already) == (count - already, already), (
                f"the sink contained {already} of {count} rows, but the report has created={report.created} and "
                f"already={report.already}"
            )
        if report.stored:
            assert sum(report.stored.values()) == count, (
                f"stored counts {report.stored}, but {count} rows are in the sink"
            )
        return report.parts

    def commit(self, emission: int, epoch: int, parts: Sequence[str]) -> None:
        if parts:
            assert isinstance(self.writer, CommittedWriter), "only a CommittedWriter has parts"
            self.writer.commit(emission, epoch, parts, _digest(emission))

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Note that readers must see these rows."""
        for batch in batches:
            for at, one in enumerate(ids_of(self.shape, [batch], 1)):
                self.wanted[one] = 1
                self.rows[one] = batch.slice(at, 1)

    def require_ids(self, when: str) -> None:
        """Require that readers see each noted row once, and no other row."""
        found = Counter(self.sink.ids())
        missing, more = self.wanted - found, found - self.wanted
        assert not missing, (
            f"{when}: readers miss {missing.total()} of {self.wanted.total()} results, for example {min(missing)}"
        )
        assert not more, f"{when}: readers see {more.total()} results too many, or twice, for example {min(more)}"


def ids_of(shape: DocumentShape, batches: Sequence[pa.RecordBatch], epoch: int) -> list[str]:
    """Return the id of each row."""
    return [one.id for batch in batches for one in shape.documents(batch, epoch, 1)]


def _digest(emission: int) -> str:
    return _DIGESTS.get(emission, _DIGEST)


def _check_repeats(run: _Run) -> None:
    shape, rows = run.shape, list(range(1, _ROWS + 1))
    assert run.sink.ids() == [], "the sink must be empty before"
    run.add([batch_of(shape, rows)])
    run.write([batch_of(shape, rows[:100])], 1, 1)  # crashes here
    for epoch, pieces in enumerate(([rows], [rows[:33], rows[33:]], [rows[200:], rows[:200]]), start=2):
        run.writer.prepare(_NOON_MS - 60_000)  # a new run
        parts = [part for piece in pieces for part in run.write([batch_of(shape, piece)], epoch, 1)]
        run.commit(1, epoch, parts)
        run.require_ids(f"after run {epoch} has written the same results again")
    assert run.write([], 5, 2) == [], "a call without batches has no parts"


def _check_batches(run: _Run) -> None:
    """Several batches in one call, one without rows, and one that is larger than a page."""
    batches = [batch_of(run.shape, rows) for rows in ([501], [], range(502, 540))]
    run.add(batches)
    run.commit(5, 6, run.write(batches, 6, 5))
    run.require_ids("after a call with three batches")
    large = [batch_of(run.shape, _LARGE)]
    run.add(large)
    run.commit(6, 6, run.write(large, 6, 6))
    run.require_ids(f"after a batch of {len(_LARGE)} rows")


def _check_late_commit(run: _Run) -> None:
    """A run that was believed to be dead commits after its successor."""
    batches = [batch_of(run.shape, range(601, 621))]
    run.add(batches)
    late = run.write(batches, 7, 7)
    run.commit(7, 8, run.write(batches, 8, 7))
    run.commit(7, 7, late)
    run.require_ids("after a late commit of an earlier run")


def _check_refusals(run: _Run) -> None:
    good, bad = batch_of(run.shape, [1001, 1002]), batch_of(run.shape, [1003], load=float("nan"))
    report = run.writer.write_batches([bad, good, bad.slice(0, 0)], 9, 2, _digest(2))
    assert len(report.refused) == 1, f"load is NaN in one row of three, which must be in `refused`: {report}"
    refused = report.refused[0]
    assert isinstance(refused, Refused), report
    assert [refused.id] == ids_of(run.shape, [bad], 9), f"the refused row has another id: {refused}"
    assert refused.source, "a refused row contains its document, for the dead letter"
    if run.shape.is_elsewhere:
        assert refused.index == run.shape.emit_name, (
            f"`index` of a refused row must be {run.shape.emit_name}: {refused}"
        )
    assert (report.created, report.already) == (2, 0), f"two rows are created, and one is refused: {report}"
    run.add([good])
    run.commit(2, 9, report.parts)
    run.require_ids("after a refused row, which must not affect the other rows")


def _check_divergence(run: _Run) -> None:
    rows = list(range(1, _ROWS + 1))
    pieces = [batch_of(run.shape, rows[:99]), batch_of(run.shape, [100], load=-1.0), batch_of(run.shape, rows[100:])]
    (single,) = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    for epoch, changed, what in (
        (10, batch_of(run.shape, rows, load=-1.0), "another value under the same id"),
        (12, single, f"another value in one of {_ROWS} rows"),
    ):
        _require_divergence(run, [changed], epoch, 1, what)
        again = "the value was changed by a Divergence"
        run.commit(1, epoch + 1, _written_again(run, [batch_of(run.shape, rows)], epoch + 1, 1, again))
        run.require_ids("after a Divergence")


def _check_pair(run: _Run, emission: int, name: str, value: Any, other: Any) -> None:
    """Write a value, and then one that a sink could confuse with it."""
    batches, changed = ([batch_of(run.shape, [emission + 2000], values={name: one})] for one in (value, other))
    run.add(batches)
    run.commit(emission, 1, run.write(batches, 1, emission))
    what = f"{name} = {other!r}, where the sink has {value!r}: it rounds or loses values, or doesn't compare them. This"
    _require_divergence(run, changed, 2, emission, what)
    again = f"{name} = {value!r} was changed by a Divergence, or isn't stored as it was written"
    run.commit(emission, 3, _written_again(run, batches, 3, emission, again))
    run.require_ids(f"after another value of {name}")


def _written_again(
    run: _Run, batches: Sequence[pa.RecordBatch], epoch: int, emission: int, otherwise: str
) -> list[str]:
    try:
        return run.write(batches, epoch, emission)
    except Divergence as error:
        raise AssertionError(f"{otherwise}: {error}") from error


def _require_divergence(run: _Run, batches: Sequence[pa.RecordBatch], epoch: int, emission: int, what: str) -> None:
    try:
        report = run.writer.write_batches(batches, epoch, emission, _digest(emission))
        run.commit(emission, epoch, report.parts)
    except Divergence:
        return
    raise AssertionError(f"{what} must raise Divergence")


def _check_versions(run: _Run) -> None:
    """A new version of the job takes over a slice: the version isn't a part of the result."""
    batches, first = [batch_of(run.shape, [1, 2, 3])], run.writer
    if run.is_committed:
        batches = [batch_of(run.shape, range(601, 621))]
    emission = 7 if run.is_committed else 1
    run.writer = run.new_writer(replace(run.shape, version=2))
    what = "another version of the job can't write equal results again"
    run.commit(emission, 14, _written_again(run, batches, 14, emission, what))
    run.writer = first
    run.require_ids("after another version has written the same results")


def _check_parallel(run: _Run) -> None:
    """The tasks of a slice write at the same time, each other rows."""
    pieces = [batch_of(run.shape, range(start, start + 25)) for start in range(3001, 3101, 25)]
    writers = [run.new_writer() for _ in pieces]
    with ThreadPoolExecutor(len(pieces)) as pool:
        reports = list(
            pool.map(lambda one: one[0].write_batches([one[1]], 1, 8, _DIGEST), zip(writers, pieces, strict=True))
        )
    run.add(pieces)
    assert [report.rows for report in reports] == [25] * len(pieces), "parallel tasks report other numbers of rows"
    run.commit(8, 1, [part for report in reports for part in report.parts])
    run.require_ids("after four tasks have written at the same time")


def _check_values(run: _Run) -> None:
    read = getattr(run.sink, "values", None)
    if read is None:
        return
    found: Mapping[str, Mapping[str, object]] = read()
    for one, batch in run.rows.items():
        for name, kind in run.shape.fields:
            wanted, value = batch.column(name)[0].as_py(), found[one][name]
            assert _is_same(kind, wanted, value), f"{name} of {one} is {value!r}, but {wanted!r} was written"


def _is_same(kind: str, wanted: Any, value: object) -> bool:
    if wanted is None or value is None:
        return wanted is value
    if kind.startswith("decimal"):
        return isinstance(value, Decimal | str | int) and Decimal(value) == wanted
    if kind == "timestamp":
        moment = (
            wanted if isinstance(wanted, datetime) else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=wanted)
        )
        return (datetime.fromisoformat(value) if isinstance(value, str) else value) == moment
    return type(value) is type(wanted) and value == wanted


def _check_outage(run: _Run) -> None:
    outage = getattr(run.sink, "outage", None)
    if outage is None:
        return
    batches = [batch_of(run.shape, range(701, 721))]
    fresh = run.sink.writer(run.shape)

    def write() -> None:
        run.commit(9, 1, run.writer.write_batches(batches, 1, 9, _DIGEST).parts)

    with outage():
        _require_transient("write_batches", write)
        _require_transient("prepare", lambda: fresh.prepare(None))
    run.add(batches)
    run.commit(9, 2, run.write(batches, 2, 9))
    run.require_ids("after an outage")


def _require_transient(name: str, call: Callable[[], object]) -> None:
    try:
        call()
    except TransientError:
        return
    except Exception as error:
        raise AssertionError(
            f"{name} raises {error!r} while the server doesn't respond; raise SinkUnavailable, so that the run waits"
        ) from error
    raise AssertionError(
        f"{name} returns while the server doesn't respond; raise SinkUnavailable, so that no row is lost"
    )


def _check_other_guarantees(run: _Run) -> None:
    """With `at_least_once` and `none`, a repeated run has results of its own, under ids with its epoch."""
    shape = replace(run.shape, stage="repeated", is_once=False)
    run.writer, before = run.new_writer(shape), len(run.sink.ids())
    for epoch, load in ((1, 1.0), (2, 2.0)):
        batch = batch_of(shape, [1, 2, 3], load=load)
        try:
            report = run.writer.write_batches([batch], epoch, 1, _digest(1))
            run.commit(1, epoch, report.parts)
        except Divergence as error:
            raise AssertionError(
                f"`is_once` is false, so each run has its own results: use the ids of shape.documents(batch, epoch, ...): {error}"
            ) from error
        ids = run.sink.ids()
        assert len(ids) == len(set(ids)) == before + 3 * epoch, (
            f"`is_once` is false: after {epoch} runs, readers must see {3 * epoch} more results, and see {len(ids) - before}"
        )
