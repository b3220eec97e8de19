"""A join as one DuckDB query. It recomputes which rows match, and shares no code with the operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from strandline.processing.audit_queries.stage_query import POSITION, POSITION_TYPES, StageQuery
from strandline.processing.audit_queries.stored_columns import restored, stored_type
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.columns.codes import Codes
from strandline.processing.kinds.join.operator import result_places
from strandline.processing.kinds.join.step import JoinStage
from strandline.processing.pipelines.stages import LEFT, RIGHT, Stage
from strandline.results.names import ROWS_JOINED
from strandline.results.records.partition_labels import PARTITIONS_MAX
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

_TIME = "time_us"
JOINED_POSITION = ("log_partition", "log_offset", "log_element")
"""Columns with the log position of a row. The element is null if the row is a complete record."""
_OF_RESULTS = (("result", pa.string()), ("start_ms", pa.int64()))
"""Additional columns if a side consists of results of a stage: the identity of the row and the beginning of its window. Null for
records."""
_TOO_MANY = (
    "{step}: more than {count:,} rows of one key on one side within reach of each other; raise 'max_rows', or leave rows "
    "out before the join"
)


class JoinQuery(StageQuery):
    """The query of one join. `rows` returns the columns of one side that the table stores, and `sql` the query of all results."""

    needs_positions = True
    whole_element = None

    stage: JoinStage

    def __init__(self, stage: JoinStage, side: int = LEFT) -> None:
        """`side`: side of the rows that `rows` accepts."""
        self.stage = stage
        self._side = side
        self._key_types = [arrow_type(kind) for kind in stage.by_types]
        self._keys = [f"key_{at}" for at in range(len(stage.by))]
        self._values = [f"value_{at}" for at in range(len(stage.columns))]
        self._value_types = [arrow_type(one.type) for one in stage.columns]
        columns = zip([*self._keys, *self._values], [*self._key_types, *self._value_types], strict=True)
        self.row_schema = pa.schema(
            [
                (_TIME, pa.int64()),
                ("side", pa.int8()),
                *zip(JOINED_POSITION, POSITION_TYPES, strict=True),
                *(_OF_RESULTS if stage.reads_results else ()),
                *((name, stored_type(kind)) for name, kind in columns),
            ]
        )

    def rows(self, event_us: pa.Array, columns: dict[str, pa.Array], places: Sequence[pa.Array] = ()) -> pa.RecordBatch:
        of_results = [pa.nulls(len(event_us), kind) for _, kind in _OF_RESULTS] if self.stage.reads_results else []
        return self._rows(event_us, columns, [*places, *of_results])

    def rows_of_results(
        self, before: Stage, event_us: pa.Array, columns: dict[str, pa.Array], labels: Callable[[], Codes]
    ) -> pa.RecordBatch:
        results = result_places(before, columns)
        nowhere = [pa.nulls(len(event_us), kind) for kind in POSITION_TYPES]
        return self._rows(event_us, columns, [*nowhere, results, columns[WINDOW_START]])

    def _rows(self, event_us: pa.Array, columns: Mapping[str, pa.Array], stands: Sequence[pa.Array]) -> pa.RecordBatch:
        count = len(event_us)
        values = [
            columns[one.column] if one.side == self._side else pa.nulls(count, arrow_type(one.type))
            for one in self.stage.columns
        ]
        stored = [restored(one, stored_type(one.type)) for one in (*(columns[name] for name in self.stage.by), *values)]
        side = pa.repeat(pa.scalar(self._side, pa.int8()), count)
        return pa.RecordBatch.from_arrays([event_us, side, *stands, *stored], schema=self.row_schema)

    def results(self, database: Database, table: Table, rows: str | None = None) -> Iterator[pa.RecordBatch]:
        names = [WINDOW_START, WINDOW_END, *self.stage.window_types, ROWS_JOINED, PROBLEM]
        kinds = [pa.int64(), pa.int64(), *self._key_types, *self._value_types, pa.string(), pa.string()]
        for batch in database.query(self.sql(rows or table.sql)):
            columns = [restored(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names)

    def same_position(self, row: str, place: str) -> str:
        named = zip(POSITION, JOINED_POSITION, strict=True)
        same = " AND ".join(f"{place}.{name} = coalesce({row}.{column}, 0)" for name, column in named)
        return f"{same} AND {row}.side IN ({', '.join(map(str, self.stage.deduped_sides))})"

    def sql(self, table: str) -> str:
        """Return the query.

        1. Number the rows of each key and side, and find those beyond `max_rows`.
        2. Pair the other rows of both sides.
        3. Add the rows without a partner, for sides that keep them, and the rows beyond `max_rows`.
        """
        step, size = self.stage, self._size_us
        keys = ", ".join(self._keys)
        order = f"ORDER BY {_TIME}, {', '.join(JOINED_POSITION)}{', result' if step.reads_results else ''}"
        hold = f"CASE side WHEN {LEFT} THEN {step.hold_ms(LEFT)} ELSE {step.hold_ms(RIGHT)} END"
        within = f"PARTITION BY side, {keys}{f', {_TIME} // {size}' if step.in_windows else ''}"
        nth = f"lag({_TIME}, {step.max_rows}) OVER ({within} {order})"
        is_near = "true" if step.in_windows else f"{nth} >= {_TIME} - 1000 * ({hold})"
        is_null = " OR ".join(f"{key} IS NULL" for key in self._keys)
        beyond = "false" if step.is_latest else f"({nth} IS NOT NULL AND {is_near} AND NOT ({is_null}))"
        place = f"{self._stream} || '/' || (log_partition % {PARTITIONS_MAX}) || '/' || log_offset"
        place += " || CASE WHEN log_element IS NULL THEN '' ELSE '/' || log_element END"
        if step.reads_results:
            place = f"coalesce(result, {place})"
        all_rows = f"SELECT *, {beyond} AS beyond, {place} AS place FROM {table}"
        found = [self._pairs(), self._alone("beyond", "beyond", is_beyond=True)]
        met = "place IN (SELECT {}_place FROM met)"
        for side, name in ((LEFT, "l"), (RIGHT, "r")):
            if step.keeps(side):
                found.append(self._alone(f"side = {side} AND NOT beyond AND NOT {met.format(name)}", name))
        pairs = f"SELECT l.place AS l_place, r.place AS r_place {self._met()}"
        return f"WITH all_rows AS ({all_rows}), met AS ({pairs}) {' UNION ALL '.join(found)}"

    @property
    def _size_us(self) -> int:
        """Size of the windows that contain both rows. Results with the same window end at the same time, so 1 ms is enough."""
        return 1000 if self.stage.has_same_windows else self.stage.size_ms * 1000

    @property
    def _stream(self) -> str:
        names = [f"WHEN {place} THEN '{name}'" for place, name in enumerate(self.stage.streams_joined)]
        return f"CASE log_partition // {PARTITIONS_MAX} {' '.join(names)} END"

    def _met(self) -> str:
        """Return the FROM clause of the matching rows of both sides, as `l` and `r`."""
        step = self.stage
        if not step.is_latest:
            return f"FROM all_rows l JOIN all_rows r ON {self._condition()}"
        keys = ", ".join(self._keys)
        stand = [*JOINED_POSITION, *(["result"] if step.reads_results else [])]
        last = (
            f"row_number() OVER (PARTITION BY {keys}, {_TIME} ORDER BY {', '.join(f'{one} DESC' for one in stand)}) = 1"
        )
        rights = f"SELECT * FROM all_rows WHERE side = {RIGHT} QUALIFY {last}"
        equal = " AND ".join(f"l.{key} = r.{key}" for key in self._keys)
        return (
            f"FROM (SELECT * FROM all_rows WHERE side = {LEFT}) l ASOF JOIN ({rights}) r ON {equal} AND l.{_TIME} >= r.{_TIME} "
            f"WHERE r.{_TIME} >= l.{_TIME} - {1000 * step.before_ms}"
        )

    def _condition(self) -> str:
        step = self.stage
        parts = [f"l.side = {LEFT}", f"r.side = {RIGHT}", "NOT l.beyond", "NOT r.beyond"]
        parts += [f"l.{key} = r.{key}" for key in self._keys]
        if step.in_windows:
            size = self._size_us
            parts.append(f"l.{_TIME} // {size} = r.{_TIME} // {size}")
        else:
            parts.append(f"r.{_TIME} >= l.{_TIME} - {1000 * step.before_ms}")
            parts.append(f"r.{_TIME} <= l.{_TIME} + {1000 * step.after_ms}")
        return " AND ".join(parts)

    def _pairs(self) -> str:
        values = [
            f"{'l' if one.side == LEFT else 'r'}.{name}"
            for one, name in zip(self.stage.columns, self._values, strict=True)
        ]
        times = self._window("l.")
        if not self.stage.in_windows:
            start, end = f"least(l.{_TIME}, r.{_TIME})", f"greatest(l.{_TIME}, r.{_TIME})"
            times = [f"{start} // 1000", f"{end} // 1000 + 1"]
        columns = [*times, *(f"l.{key}" for key in self._keys), *values, "l.place || '|' || r.place", "NULL::VARCHAR"]
        return f"SELECT {', '.join(columns)} {self._met()}"

    def _alone(self, where: str, name: str, *, is_beyond: bool = False) -> str:
        """Return the query of the rows without a partner. Values of the other side are null in these rows."""
        step = self.stage
        hold = 0 if is_beyond else step.hold_ms(LEFT if name == "l" else RIGHT)
        times = [f"{_TIME} // 1000", f"{_TIME} // 1000 + {hold + 1}"]
        if step.in_windows:
            times = self._window()
        places = f"CASE side WHEN {LEFT} THEN place || '|-' ELSE '-|' || place END"
        problem = _TOO_MANY.format(step=step.path, count=step.max_rows).replace("'", "''") if is_beyond else ""
        shown = f"'{problem}'" if is_beyond else "NULL::VARCHAR"
        return f"SELECT {', '.join([*times, *self._keys, *self._values, places, shown])} FROM all_rows WHERE {where}"

    def _window(self, row: str = "") -> list[str]:
        size_ms = self.stage.size_ms
        if self.stage.has_same_windows:
            return [f"{row}start_ms", f"{row}{_TIME} // 1000 + 1"]
        start = f"{row}{_TIME} // {size_ms * 1000} * {size_ms}"
        return [start, f"{start} + {size_ms}"]


def query_of(
    stage: JoinStage, side: int, types: Mapping[str, str], position_types: Sequence[pa.DataType] = POSITION_TYPES
) -> JoinQuery:
    """Return the query of a join. `types`, `position_types`: not needed, because a join computes no expressions."""
    return JoinQuery(stage, side)
