"""What the present version of a pipeline would make of records that are put back: by its real decoder and record steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.processing.formats.record_rows import RowReader
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.source.data_source import task_config
from strandline.processing.source.decoding import decoder_of

if TYPE_CHECKING:
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

ACCEPTED = "accepted"


@dataclass(frozen=True)
class Prospect:
    """What would become of a record now."""

    outcome: str
    """`accepted`, or the reason for which it would be rejected."""
    message: str = ""


class Prospects:
    """Judges records as a source task of the pipeline's next slice would."""

    def __init__(self, pipeline: CheckedPipeline, watermark_ms: int | None) -> None:
        """`pipeline`: with the tables of its lookups. `watermark_ms`: what is closed already; a record with an earlier event time
        will be late, whatever the next slice is."""
        config = task_config(pipeline, "", (0,))
        self._decoder = decoder_of(config.decoding)
        self._row_reader = RowReader(config.decoding.format)
        self._steps = RowSteps(config.record_steps, dict(config.types))
        self._tables = pipeline.tables
        self._watermark_ms = watermark_ms
        self._max_ahead_ms = pipeline.event_time_rule.max_ahead_ms

    def of_records(
        self, values: Sequence[bytes | None], headers: Sequence[Mapping[str, bytes]], log_time_ms: int
    ) -> list[Prospect]:
        """The prospect of each record, if it gets into the log at `log_time_ms`. Of a record that is many rows, the first that is
        rejected says it."""
        names = self._row_reader.headers
        sources = [next((one[name] for name in names if name in one), None) for one in headers]
        found = [Prospect(ACCEPTED)] * len(values)
        first = 0
        for rows in self._row_reader.parts(values, sources if any(source is not None for source in sources) else []):
            places = list(range(first, first + len(rows.texts))) if rows.places is None else list(rows.places)
            first += len(rows.texts)
            log_times_ms = [log_time_ms] * len(rows.texts)
            decoded = self._decoder.decode(rows.texts, log_times_ms, self._watermark_ms, self._max_ahead_ms)
            rejects = [(one.index, Prospect(one.reason, one.message)) for one in decoded.rejects]
            rejected = {at for at, _ in rejects}
            accepted = [at for at in range(len(rows.texts)) if at not in rejected]
            stepped = self._steps.apply(decoded.arrays, len(accepted), self._tables)
            rejects += [(accepted[one.row], Prospect(one.reason, one.message)) for one in stepped.problems]
            for at, prospect in sorted(rejects, key=lambda reject: reject[0]):
                if found[places[at]].outcome == ACCEPTED:
                    found[places[at]] = prospect
        return found
