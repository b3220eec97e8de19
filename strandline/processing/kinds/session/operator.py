"""The operator of sessions: (state, rows, closing) -> (state, results). See `operators/windows.py`.

Event times of one key that are less than the gap apart form a *chain*. Only the events of a chain determine how it is cut into
sessions (`SessionShape`):

- The *first cut* is at the beginning of the pane of the first event, plus the maximum length. All events before it are one
  session.
- After it, each multiple of the maximum length since 1970 is a cut.
- A session begins with its first event. It ends the gap after its last event, or at the next cut if the cut is earlier.

So no session is longer than allowed. All sessions are final when the watermark passes their end. The past that is needed is
bounded, even for a key that never pauses.

Panes are no longer than the gap, and all cuts are between panes, so a pane of a key is in one session. In addition to its partial
results, a pane contains the times of its first and its last event, which determine chains and sessions. When a session closes,
its panes are merged in time order for each partition, and then the partitions in their order, as with other windows. So the
bits don't depend on how the log was sliced.

The state contains the panes of sessions that aren't final. If a cut made a session final, but its chain can continue, the state
contains a *remnant* of the session. It consists of the beginning of the chain, and of the last event of the session. It is
removed when no event can join the chain any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.keys import key_ranks, merge_keys
from strandline.processing.operators.windows import ClosedWindows, Rows, WindowOperator, WindowState
from strandline.processing.pipelines.stages import Stage

_REMNANT = -1
"""Replaces the partition: the row is a remnant, and has no partial results."""
Flags = npt.NDArray[np.bool_]


class SessionOperator(WindowOperator):
    """One stage of sessions."""

    key_columns = (*WindowOperator.key_columns, ("first_ms", pa.int64()), ("last_ms", pa.int64()))

    def __init__(self, stage: Stage, types: dict[str, str]) -> None:
        super().__init__(stage, types)
        shape = stage.shape
        assert isinstance(shape, SessionShape)
        self._gap_ms = shape.gap_ms
        self._cut_panes = shape.cut_ms // shape.pane_ms
        self.pane_ms = shape.pane_ms

    def _panes_of(self, event_us: Codes) -> Codes:
        return event_us // 1000

    def step_in_part(
        self, state: WindowState, rows: Sequence[Rows], closing: Closing
    ) -> tuple[WindowState, list[ClosedWindows]]:
        """See `WindowOperator.step_in_part`.

        1. Number the keys of the state and of the rows together, and fold the rows into their panes.
        2. Sort the panes and remnants of each key by time, and determine chains and sessions.
        3. Take out the sessions that are final, and leave a remnant of each chain that can continue.
        """
        numbers, keys = merge_keys([state.keys, *[one.key_table for one in rows]], self.key_schema)
        known = _Groups.of(state.groups)
        is_remnant = known.partition == _REMNANT
        remnants = _renumbered(state.groups.filter(pa.array(is_remnant)), numbers[0])
        groups = self._fold_rows(state.groups.filter(pa.array(~is_remnant)), numbers, rows, keys.num_rows)
        if closing.up_to_ms is None or not remnants.num_rows + groups.num_rows:
            return self._kept(keys, remnants, groups), []
        ranks = key_ranks(keys)
        sessions = self._sessions(_Groups.of(remnants), _Groups.of(groups), ranks)
        is_closed = sessions.end_ms <= closing.up_to_ms
        is_new = is_closed if closing.after_ms is None else is_closed & (sessions.end_ms > closing.after_ms)
        closed = self._merge(groups, sessions, is_new & closing.gives_results, ranks)
        left = groups.filter(pa.array(~is_closed[sessions.of_group]))
        remnants = self._remnants(sessions, is_closed, closing.up_to_ms)
        return self._kept(keys, remnants, left), [ClosedWindows(keys, closed)] if closed.num_rows else []

    def open_windows(self, state: WindowState, closed_ms: int | None, rows_max: int) -> list[ClosedWindows]:
        """Return the sessions as they would end if no more rows arrived. See `WindowOperator.open_windows`."""
        known = _Groups.of(state.groups)
        if not (known.partition != _REMNANT).any():
            return []
        last_ms = int(known.last_ms[known.partition != _REMNANT].max())
        return self.step_in_part(state, [], Closing(closed_ms, last_ms + self._gap_ms))[1]

    def _fold_rows(
        self, state: pa.RecordBatch, numbers: list[Codes], rows: Sequence[Rows], key_count: int
    ) -> pa.RecordBatch:
        """Return the panes of the state with the rows folded in: partial results, first and last event."""
        before = _Groups.of(state)
        times = np.concatenate([np.zeros(0, np.int64), *[one.panes for one in rows]])
        places, partials = self._fold_into_groups(
            state, numbers, [one.panes // self.pane_ms for one in rows], rows, key_count
        )
        firsts = np.full(places.count, np.iinfo(np.int64).max)
        lasts = np.full(places.count, np.iinfo(np.int64).min)
        np.minimum.at(firsts, places.codes, np.concatenate([before.first_ms, times]))
        np.maximum.at(lasts, places.codes, np.concatenate([before.last_ms, times]))
        columns = [places.panes, places.keys, places.partitions.astype(np.int32), firsts, lasts]
        return pa.RecordBatch.from_arrays([*map(pa.array, columns), *partials], schema=self.state_schema)

    def _sessions(self, remnants: _Groups, groups: _Groups, ranks: Codes) -> _Sessions:
        """Return all known sessions, by key and time. A remnant counts as a session that has closed."""
        both = remnants.followed_by(groups)
        order = np.lexsort((both.first_ms, both.pane, ranks[both.key]))
        one = both.taken(order)
        begins_pane = _differs(one.key) | _differs(one.pane)
        at = np.flatnonzero(begins_pane)
        key, pane = one.key[at], one.pane[at]
        first, last = np.minimum.reduceat(one.first_ms, at), np.maximum.reduceat(one.last_ms, at)
        begins_chain = _differs(key)
        begins_chain[1:] |= first[1:] - last[:-1] >= self._gap_ms
        chain_at = np.flatnonzero(begins_chain)
        chain = np.cumsum(begins_chain) - 1
        began_ms = first[chain_at]
        first_cut = (began_ms // self.pane_ms + self._cut_panes)[chain]
        cut = np.where(pane < first_cut, first_cut, (pane // self._cut_panes + 1) * self._cut_panes)
        begins_session = begins_chain | _differs(cut)
        session_at = np.flatnonzero(begins_session)
        session = np.cumsum(begins_session) - 1
        ends = np.append(session_at[1:], len(pane)) - 1
        of_group = np.empty(len(order), np.int64)
        of_group[order] = session[np.cumsum(begins_pane) - 1]
        count = len(remnants.pane)
        is_remnant = np.zeros(len(session_at), np.bool_)
        is_remnant[of_group[:count]] = True
        return _Sessions(
            key=key[session_at],
            start_ms=first[session_at],
            last_ms=last[ends],
            end_ms=np.minimum(last[ends] + self._gap_ms, cut[session_at] * self.pane_ms),
            began_ms=began_ms[chain[session_at]],
            chain=chain[session_at],
            chain_last_ms=last[np.append(chain_at[1:], len(pane)) - 1][chain[session_at]],
            is_remnant=is_remnant,
            of_group=of_group[count:],
        )

    def _merge(self, groups: pa.RecordBatch, sessions: _Sessions, is_new: Flags, ranks: Codes) -> pa.RecordBatch:
        """Return the new sessions, by end, then key, then partition. Their panes are merged in time order."""
        chosen = np.flatnonzero(is_new & ~sessions.is_remnant)
        place_of = np.full(len(is_new), -1, np.int64)
        by_end = chosen[np.lexsort((ranks[sessions.key[chosen]], sessions.end_ms[chosen]))]
        place_of[by_end] = np.arange(len(by_end))
        rows = np.flatnonzero(place_of[sessions.of_group] >= 0)
        known = _Groups.of(groups)
        place = place_of[sessions.of_group[rows]]
        order = np.lexsort((known.pane[rows], known.partition[rows], place))
        rows, place = rows[order], place[order]
        begins = _differs(place) | _differs(known.partition[rows])
        at = np.flatnonzero(begins)
        taken = groups.take(pa.array(rows))
        partials = taken.columns[len(self.key_columns) :]
        if len(rows):
            partials = self.aggregates.merge(partials, np.cumsum(begins) - 1, len(at))
        session = by_end[place[at]]
        columns = [
            sessions.end_ms[session],
            sessions.key[session],
            known.partition[rows[at]].astype(np.int32),
            sessions.start_ms[session],
            sessions.last_ms[session],
        ]
        return pa.RecordBatch.from_arrays([*map(pa.array, columns), *partials], schema=self.state_schema)

    def _remnants(self, sessions: _Sessions, is_closed: Flags, up_to_ms: int) -> pa.RecordBatch:
        """Return a remnant for each chain that can continue after one of its sessions closed.

        It can continue if a later session is open, or if an event can still join the last session.
        """
        is_last_closed = is_closed.copy()
        is_last_closed[:-1] &= ~(is_closed[1:] & (sessions.chain[1:] == sessions.chain[:-1]))
        kept = np.flatnonzero(is_last_closed & (sessions.chain_last_ms + self._gap_ms > up_to_ms))
        count, last_ms = len(kept), sessions.last_ms[kept]
        columns = [
            last_ms // self.pane_ms,
            sessions.key[kept],
            np.full(count, _REMNANT, np.int32),
            sessions.began_ms[kept],
            last_ms,
        ]
        nothing = [pa.nulls(count, kind) for kind in self.aggregates.partial_types]
        return pa.RecordBatch.from_arrays([*map(pa.array, columns), *nothing], schema=self.state_schema)

    def _kept(self, keys: pa.RecordBatch, remnants: pa.RecordBatch, groups: pa.RecordBatch) -> WindowState:
        return self._without_unused_keys(keys, pa.concat_batches([remnants, groups]))

    def _times(self, groups: pa.RecordBatch, rows: Codes) -> tuple[Codes, Codes]:
        known = _Groups.of(groups)
        return known.first_ms[rows], known.pane[rows]


@dataclass(frozen=True)
class _Groups:
    """The first columns of a table of the state."""

    pane: Codes
    key: Codes
    partition: Codes
    first_ms: Codes
    """Time of the first event of the pane. For a remnant, the beginning of its chain."""
    last_ms: Codes

    @staticmethod
    def of(batch: pa.RecordBatch) -> _Groups:
        columns = [
            column.to_numpy(zero_copy_only=False) for column in batch.columns[: len(SessionOperator.key_columns)]
        ]
        return _Groups(*columns)

    def followed_by(self, other: _Groups) -> _Groups:
        mine, others = vars(self).values(), vars(other).values()
        return _Groups(*[np.concatenate(pair) for pair in zip(mine, others, strict=True)])

    def taken(self, rows: Codes) -> _Groups:
        return _Groups(*[column[rows] for column in vars(self).values()])


@dataclass(frozen=True)
class _Sessions:
    """Sessions in the order of key and time."""

    key: Codes
    start_ms: Codes
    last_ms: Codes
    """Last known event of the session."""
    end_ms: Codes
    began_ms: Codes
    """Beginning of its chain."""
    chain: Codes
    """Number of its chain."""
    chain_last_ms: Codes
    """Last known event of its chain."""
    is_remnant: Flags
    of_group: Codes
    """Index of the session of each row of partial results."""


def _differs(values: Codes) -> Flags:
    """Return True for the first value, and for each value that differs from the value before it."""
    found = np.ones(len(values), np.bool_)
    found[1:] = values[1:] != values[:-1]
    return found


def _renumbered(groups: pa.RecordBatch, numbers: Codes) -> pa.RecordBatch:
    keys = numbers[groups.column(1).to_numpy(zero_copy_only=False)]
    return groups.set_column(1, groups.schema.field(1), pa.array(keys, pa.int64()))


operator_of = SessionOperator
