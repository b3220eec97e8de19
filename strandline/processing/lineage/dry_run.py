"""Dry run of records that may be requeued, with the decoder and record steps of the pipeline's current version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from strandline.core.record_headers import HEADER_REPLAY_OF, pack_header_values, with_record_metadata
from strandline.processing.formats.decoder import NEVER_AHEAD, NEVER_LATE
from strandline.processing.formats.format import SessionState
from strandline.processing.formats.record_rows import RecordFormat, RowReader
from strandline.processing.source.decoding import conforming_decoder, decoder_of, task_config

if TYPE_CHECKING:
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

ACCEPTED = "accepted"


@dataclass(frozen=True)
class DryRunOutcome:
    """Outcome that a record would have now."""

    outcome: str
    """`accepted`, or the reason for which it would be rejected."""
    message: str = ""
    taken_by: str = ""
    """The stages of other branches of the pipeline that receive the rejected record."""


class RecordContext(NamedTuple):
    """Conditions at the log position of a record, or at the position that it would have."""

    log_time_ms: int
    late_below_ms: int | None
    max_ahead_ms: int | None


class DryRun:
    """Evaluates records like a source task of the pipeline, for its next slice or for recorded slices."""

    def __init__(
        self,
        pipeline: CheckedPipeline,
        late_below_ms: int | None = None,
        other: RecordFormat | None = None,
        sessions: SessionState | None = None,
        stream: str | None = None,
    ) -> None:
        """`pipeline`: with the tables of its lookups. `late_below_ms`: the current limit; a record with an earlier event time
        will be late, whatever the next slice is. `other`: format of the records. None for the current format of their stream.

        `sessions`: declarations of earlier records of the stream. None if its format has none. `stream`: the stream of the
        records. None for the first input stream of the pipeline."""
        config = task_config(pipeline, "", (0,))
        stream = stream or pipeline.inputs[0].name
        decoding, place = config.decoding.of(stream), config.decoding.index_of(stream)
        self._decode = decoder_of(decoding).decode if other is None else conforming_decoder(decoding, other)
        self._row_reader = RowReader(other or decoding.format)
        if sessions is not None:
            self._row_reader.begin(sessions)
        self._chain = config.record_chain(place)
        self._tables = pipeline.tables
        self._late_below_ms = late_below_ms
        self._max_ahead_ms = pipeline.input_of(stream).event_time_rule.max_ahead_ms

    def of_records(
        self, values: Sequence[bytes | None], headers: Sequence[Mapping[str, bytes]], log_time_ms: int
    ) -> list[DryRunOutcome]:
        """Return the outcome of each record if it were appended at `log_time_ms`. If a record has several rows, its first
        rejected row determines the outcome."""
        return self.at(
            values, headers, [RecordContext(log_time_ms, self._late_below_ms, self._max_ahead_ms)] * len(values)
        )

    def _source(self, headers: Mapping[str, bytes]) -> bytes | None:
        """Return the headers on which rows depend, packed as by the log's reader. None if there are none."""
        reader = self._row_reader
        first = next((headers[name] for name in reader.headers if name in headers), None)
        named = {name: headers[name] for name in reader.headers_beside if name in headers}
        if reader.sessions is not None:
            named[HEADER_REPLAY_OF] = b""  # as it will be, if it is put back
        return pack_header_values(first, named)

    def at(
        self, values: Sequence[bytes | None], headers: Sequence[Mapping[str, bytes]], contexts: Sequence[RecordContext]
    ) -> list[DryRunOutcome]:
        """Return the outcome of each record under its own conditions. `headers`: with the Kafka key as `RECORD_KEY`."""
        sources = [
            self._source(with_record_metadata(one, None, context.log_time_ms))
            for one, context in zip(headers, contexts, strict=True)
        ]
        log_ms = np.array([one.log_time_ms for one in contexts], np.int64)
        late_below = [NEVER_LATE if one.late_below_ms is None else one.late_below_ms for one in contexts]
        limits = [NEVER_AHEAD if one.max_ahead_ms is None else one.max_ahead_ms for one in contexts]
        late_below_ms, limits_ms = np.array(late_below, np.int64), np.array(limits, np.int64)
        found = [DryRunOutcome(ACCEPTED)] * len(values)
        first = 0
        for rows in self._row_reader.parts(values, sources if any(source is not None for source in sources) else []):
            places = list(range(first, first + len(rows.texts))) if rows.places is None else list(rows.places)
            first += len(rows.texts)
            decoded = self._decode(rows.texts, log_ms[places].tolist(), late_below_ms[places], limits_ms[places])
            rejects = [(one.index, DryRunOutcome(one.reason, one.message)) for one in decoded.rejects]
            rejected = {at for at, _ in rejects}
            accepted = [at for at in range(len(rows.texts)) if at not in rejected]
            stepped = self._chain.apply(decoded.arrays, len(accepted), self._tables)
            rejects += [
                (accepted[one.row], DryRunOutcome(one.reason, one.message, stepped.taken_by.get(one.row, "")))
                for one in stepped.problems
            ]
            for at, outcome in sorted(rejects, key=lambda reject: reject[0]):
                if found[places[at]].outcome == ACCEPTED:
                    found[places[at]] = outcome
        return found
