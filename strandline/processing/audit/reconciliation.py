"""The comparison of an audit by id: recomputed results and stored documents. A pure merge of sorted rows.

Rows are sorted by store and id, so only the rows of one id are in memory at a time.
A store is an alias of the index, a stream of results, files, a table, the dead letters of a stage's results, or those of records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from strandline.core.described import Described
from strandline.core.record_headers import REASON_RESULT
from strandline.ledger.states import Offsets
from strandline.processing.audit.index_reader import EndRange
from strandline.results.comparison import differences_beyond_rounding
from strandline.results.generations import Generation, generation_shown
from strandline.results.names import generation_of
from strandline.results.sinks.registry import sink_of_store

DEAD_LETTERS = "(dead letters)"
"""Store of dead letters. No alias can have this name."""
RESULT_LETTERS = "letters:"
"""Prefix of a stage's name: the store of the dead letters of its results for which an expression has no value."""
EVER_MS = 1 << 62
"""Later than any time."""
_ROWS_OF_AN_ID_MAX = 20
"""Maximum number of rows of an id that are kept. More rows are only counted."""
_DIFFERENCES_SHOWN_MAX = 3


class Side(IntEnum):
    """The origin of a row."""

    COMPUTED = 0
    STORED = 1
    LETTER = 2
    """A dead letter of a document that the store refused."""
    UNUSABLE = 3
    """A computed result that no store gets, because it doesn't fit its type. Its dead letter is compared separately."""
    LOST = 4
    """Not a result: path of a file that a manifest names and that can't be read. The body contains the reason."""


class Row(NamedTuple):
    """One result, document or dead letter."""

    store: str
    id: str
    side: int
    place: str
    """Index of the document, or its stream, table, or file. For a computed result in files, the directory of its day."""
    end_ms: int | None
    """End of the window."""
    emission: int | None
    body: bytes | None
    """Result of a document as JSON, or reason of a dead letter. None for a computed result that no document can represent."""


class Kind(StrEnum):
    """The outcome for an id."""

    SAME = "same"
    REFUSED = "refused"
    """A result that the store refused, with a dead letter."""
    LATER = "later"
    """Written by a later slice, which isn't audited."""
    OUTSIDE = "outside"
    """Outside of the audited range."""
    REMOVED = "removed"
    """The owner has removed the files of its day, or everything."""
    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    MISPLACED = "misplaced"
    """In an index of another window, or in files of another day."""
    DUPLICATE = "duplicate"
    """An id that occurs more than once: in two indices, in files, or twice in the dead-letter stream."""
    LOST = "lost"
    """A file that is missing, or can't be read. Its results are counted as missing too."""


DIFFERENCES = (Kind.MISSING, Kind.EXTRA, Kind.DIFFERENT, Kind.MISPLACED, Kind.DUPLICATE, Kind.LOST)


@dataclass(frozen=True)
class StoreScope:
    """The documents of one store to compare: those of windows that end after `after_ms`, up to `up_to_ms`."""

    stage: str
    after_ms: int | None
    up_to_ms: int | None
    """None if no window is closed yet."""
    slice_committed: int
    """Last committed slice when the audit began."""
    slice_planned: int
    """Last slice that can have written something. Only its records determine which windows."""
    generations: Mapping[str, tuple[Generation, ...]] = field(default_factory=dict)
    """Alias -> the backfilled generations that it shows: the alias of the store; for dead letters, all aliases of the stage."""
    generation: int = 1
    """Generation that the job itself writes."""
    is_revised: bool = False
    """True if late records revise its documents."""
    slice_whole: int = 1
    """Documents of earlier slices aren't audited, or belong to an earlier incarnation of the job."""
    removed_before_ms: int | None = None
    """Missing results of earlier times were removed by their owner."""
    ranges: tuple[EndRange, ...] = ()
    """Ranges of the stages that emit to the store. Empty for all windows from `after_ms` to `up_to_ms`. Nothing is computed
    between the ranges."""

    def is_removed(self, end_ms: int | None) -> bool:
        """Return True if the owner can have removed a result of this time."""
        return self.removed_before_ms is not None and end_ms is not None and end_ms < self.removed_before_ms

    def is_of_later_slice(self, row: Row) -> bool:
        """Return True if a slice that isn't audited wrote the document."""
        return row.emission is not None and self.slice_committed < row.emission <= self.slice_planned

    def is_shown(self, row: Row) -> bool:
        """Return True if an alias would show the document of this dead letter: its generation must be the one shown for its
        window."""
        for alias, generations in self.generations.items():
            number = generation_of(alias, row.place)
            if number is not None:
                return row.end_ms is None or number == generation_shown(generations, row.end_ms, self.generation)
        return True

    def kind_of_unexpected(self, row: Row) -> Kind:
        """The kind of a document that the recomputation did not produce."""
        if row.end_ms is None:
            return Kind.EXTRA
        if row.store.startswith(RESULT_LETTERS) and not self.is_shown(row):
            return Kind.OUTSIDE
        if row.emission is not None and row.emission < self.slice_whole:
            return Kind.OUTSIDE
        if self.after_ms is not None and row.end_ms <= self.after_ms:
            return Kind.OUTSIDE
        if self.up_to_ms is not None and row.end_ms <= self.up_to_ms and not self.is_revised:
            is_computed = not self.ranges or any(one.holds(row.end_ms) for one in self.ranges)
            return Kind.EXTRA if is_computed else Kind.OUTSIDE
        return Kind.LATER if self.is_of_later_slice(row) else Kind.EXTRA


@dataclass(frozen=True)
class RecordScope(StoreScope):
    """The documents of records in one store to compare: those of the audited slices. A record is emitted by its own slice."""

    slice_first: int = field(kw_only=True)
    slice_last: int = field(kw_only=True)

    def kind_of_unexpected(self, row: Row) -> Kind:
        if row.emission is not None and row.emission < self.slice_first:
            return Kind.OUTSIDE
        if row.emission is not None and row.emission > self.slice_last:
            is_of_the_job = row.emission <= self.slice_planned
            is_known_later = self.slice_last < self.slice_committed or row.emission > self.slice_committed
            return Kind.LATER if is_of_the_job and is_known_later else Kind.EXTRA
        return Kind.EXTRA


@dataclass(frozen=True)
class DeadLetterScope:
    """The dead letters to compare, by the log positions of their records: stream -> partition -> offset."""

    first: Offsets
    """Offsets where the audited slices begin."""
    next: Offsets
    """Offsets where they end, in each stream that the job reads. Empty if no slice is audited."""
    later_next: Offsets | None
    """Offsets where the slices end that can already have dead letters. None if dead letters from `next` aren't compared."""

    def kind_of(self, identity: str) -> Kind:
        """Return `same` for the id of a record in the audited slices, or of an element of one. Otherwise return the kind that
        says why the id isn't compared."""
        if not self.next:
            return Kind.OUTSIDE
        stream, *numbers = identity.split("/")  # the name of a stream contains no slash
        if stream not in self.next or len(numbers) not in (2, 3) or not all(number.isdecimal() for number in numbers):
            return Kind.EXTRA
        partition, offset = int(numbers[0]), int(numbers[1])
        if offset < self.first.get(stream, {}).get(partition, 0):
            return Kind.OUTSIDE
        if offset < self.next[stream].get(partition, 0):
            return Kind.SAME
        if self.later_next is None:
            return Kind.OUTSIDE
        return Kind.LATER if offset < self.later_next.get(stream, {}).get(partition, 0) else Kind.EXTRA


@dataclass(frozen=True, slots=True)
class Finding(Described):
    """The outcome for `count` ids: one difference with its details, or a number of ids with one outcome."""

    kind: Kind
    store: str
    label: str
    """Reason of the dead letter, also if it replaces a document. Empty for other findings."""
    count: int
    id: str | None = None
    location: str = ""
    """Index of the document."""
    end_ms: int | None = None
    """End of the window."""
    detail: str = ""


Counts = Mapping[tuple[str, str, str], int]
"""(store, kind, label) -> number of ids."""
SAMPLE_MAX = 100
"""Maximum number of differences that a report shows. All others are counted."""


@dataclass(frozen=True)
class ComparisonResult:
    """The outcomes for all ids."""

    counts: Counts
    sample: list[Finding]
    """First differences, by store, window, and id."""


@dataclass(frozen=True)
class Reconciler:
    """Compares sorted rows. Pickles; runs in the executors."""

    stores: Mapping[str, StoreScope]
    letters: DeadLetterScope
    counts_only: frozenset[Kind] = field(
        default=frozenset({Kind.SAME, Kind.REFUSED, Kind.LATER, Kind.OUTSIDE, Kind.REMOVED}),
    )

    def findings(self, rows: Iterable[Row]) -> Iterator[Finding]:
        """Yield each difference when it is found, and the other counts at the end."""
        counts: Counter[tuple[Kind, str, str]] = Counter()
        for group, unkept in _by_id(rows):
            finding = (
                self._compare_letter(group, unkept) if group[0].store == DEAD_LETTERS else self._compare_document(group)
            )
            if finding.kind in self.counts_only:
                counts[finding.kind, finding.store, finding.label] += finding.count
            else:
                yield finding
        for (kind, store, label), count in sorted(counts.items()):
            yield Finding(kind, store, label, count)

    def _compare_document(self, group: list[Row]) -> Finding:
        computed = next((row for row in group if row.side in (Side.COMPUTED, Side.UNUSABLE)), None)
        held = [row for row in group if row.side == Side.STORED]
        scope = self.stores.get(group[0].store)
        if scope is None:  # no window of the stage is audited
            return Finding(Kind.OUTSIDE, group[0].store, "", 1)
        if group[0].side == Side.LOST:
            return _lost(group[0], scope)
        letters = [row for row in group if row.side == Side.LETTER and scope.is_shown(row)]
        if computed is None and group[0].store.startswith(RESULT_LETTERS):
            letters = []  # a store refused the document, which is the only problem of the result
        if computed is None and not held and not letters:
            return Finding(Kind.OUTSIDE, group[0].store, "", 1)
        one = (held or [computed or letters[0]])[0]
        kind, detail = self._compare(computed, held, letters)
        end_ms = computed.end_ms if computed else one.end_ms
        label = _text(letters[0].body) if kind is Kind.REFUSED and letters else ""
        return Finding(kind, one.store, label, 1, one.id, one.place, end_ms, detail)

    def _compare(self, computed: Row | None, held: list[Row], letters: list[Row]) -> tuple[Kind, str]:
        scope = self.stores[(held + letters + ([computed] if computed else []))[0].store]
        if computed is None:
            kinds = {scope.kind_of_unexpected(row) for row in held + letters}
            if Kind.EXTRA not in kinds:
                return (Kind.LATER if Kind.LATER in kinds else Kind.OUTSIDE), ""
            if len(held) > 1:
                return Kind.DUPLICATE, f"is in {_places(held)}, but no result has this id"
            if held and held[0].store.startswith(RESULT_LETTERS):
                return (
                    Kind.EXTRA,
                    "a dead letter of a result for which each expression has a value, or that the log doesn't contain",
                )
            what = f"is in {held[0].place}" if held else "has a dead letter"
            return Kind.EXTRA, f"{what}, but the records of the log don't lead to it"
        if len(held) > 1:
            what = f"belongs in {computed.place}" if computed.place else "can only be in one"
            return Kind.DUPLICATE, f"is in {_places(held)}; it {what}"
        if not held:
            if letters or computed.side == Side.UNUSABLE:
                return Kind.REFUSED, ""
            if scope.is_removed(computed.end_ms):
                return Kind.REMOVED, ""
            if computed.store.startswith(RESULT_LETTERS):
                return Kind.MISSING, "an expression has no value for this result, and it has no dead letter"
            return Kind.MISSING, f"belongs in {computed.place}" if computed.body else "has no dead letter either"
        if computed.store.startswith(RESULT_LETTERS):
            return Kind.SAME, ""  # only their ids are equal
        if scope.is_revised and (held[0].body, held[0].place) != (computed.body, computed.place):
            if scope.is_of_later_slice(held[0]):
                return Kind.LATER, ""
            if letters or computed.side == Side.UNUSABLE:
                return Kind.REFUSED, ""  # the document before the window's last revision stays
        if computed.body is None:
            return Kind.EXTRA, f"is in {held[0].place}, but no document can represent this result"
            # A file is in the directory of its day. The name of an index, a stream, or a table contains no slash.
        if held[0].place != computed.place and not held[0].place.startswith(f"{computed.place}/"):
            return Kind.MISPLACED, f"is in {held[0].place}; it belongs in {computed.place}"
        if held[0].body == computed.body:
            return Kind.SAME, ""
        stored = json.loads(held[0].body or b"{}")
        found = differences_beyond_rounding(stored, json.loads(computed.body), sink_of_store(computed.store).container)
        return (Kind.DIFFERENT, "; ".join(found[:_DIFFERENCES_SHOWN_MAX])) if found else (Kind.SAME, "")

    def _compare_letter(self, group: list[Row], unkept: int) -> Finding:
        computed = next((row for row in group if row.side == Side.COMPUTED), None)
        held = [row for row in group if row.side == Side.STORED]
        reason = _text((computed or held[0]).body)
        kind = self.letters.kind_of(group[0].id)
        detail = ""
        if kind is Kind.SAME:
            if computed is None:
                kind, detail = (
                    Kind.EXTRA,
                    f"a dead letter ({reason}) of a record that was accepted, or that is not in the log",
                )
            elif not held:
                kind, detail = Kind.MISSING, f"the record was rejected ({reason}), but has no dead letter"
            elif len(held) > 1:
                kind, detail = Kind.DUPLICATE, f"has {len(held) + unkept} dead letters"
            elif held[0].body != computed.body:
                kind = Kind.DIFFERENT
                detail = (
                    f"the dead letter has the reason {_text(held[0].body)}, but the record was rejected as {reason}"
                )
        elif kind is Kind.EXTRA:
            detail = f"a dead letter ({reason}) that names no record of this job"
        return Finding(kind, DEAD_LETTERS, reason, 1, group[0].id, "", None, detail)


def _lost(file: Row, scope: StoreScope) -> Finding:
    """Return the finding for a file that can't be read, or for one that its owner has removed."""
    if scope.is_removed(file.end_ms):
        return Finding(Kind.REMOVED, file.store, "", 0)
    return Finding(Kind.LOST, file.store, "", 1, file.id, file.place, file.end_ms, _text(file.body))


def is_of_document(reason: str, headers: Mapping[str, str]) -> bool:
    """Return True if a dead letter with this reason and these headers replaces a document, not a record."""
    return reason == REASON_RESULT or "document" in headers


def _by_id(rows: Iterable[Row]) -> Iterator[tuple[list[Row], int]]:
    """Yield the rows of each id that are kept, and the number of the others."""
    group: list[Row] = []
    unkept = 0
    for row in rows:
        if group and (group[0].store, group[0].id) != (row.store, row.id):
            yield group, unkept
            group, unkept = [], 0
        if len(group) < _ROWS_OF_AN_ID_MAX:
            group.append(row)
        else:
            unkept += 1
    if group:
        yield group, unkept


def _places(rows: list[Row]) -> str:
    return " and ".join(sorted(row.place for row in rows))


def _text(body: bytes | None) -> str:
    return (body or b"").decode("utf-8", "replace")
