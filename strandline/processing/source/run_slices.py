"""The slices of one run as batches: which committed slices a replay merges, what a batch reads, and what its tasks do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.log.reader import OffsetRange
from strandline.processing.slices.planner import PlannerSettings
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.source.recorded_slices import Replay
from strandline.processing.source.slice_rows import SliceWork, encode
from strandline.processing.source.source_config import Piece, TaskConfig
from strandline.processing.source.stream_formats import StreamFormats

if TYPE_CHECKING:  # the workers load this module too, and need neither SQL nor pydantic
    from strandline.ledger.roles import PlannerLedger

_TASK_RECORDS_MIN = 5_000
"""A second task costs more than it saves below this number of records."""


@dataclass(frozen=True)
class SourceConfig:
    """Settings of one run for its planner and its source tasks. Pickled by Spark, so it contains no secret."""

    task: TaskConfig
    planner: PlannerSettings
    plan: RewindPlan
    replay_rows_max: int
    slice_interval_ms: int
    parallelism: int
    """Maximum number of source tasks of a batch."""
    ledger_url: str
    """Without its password."""


class RunSlices:
    """The slices of one run. Reads the ledger, and plans nothing."""

    def __init__(self, config: SourceConfig, ledger: PlannerLedger) -> None:
        self._config, self._ledger = config, ledger
        self._replay: Replay | None = None
        self._formats: StreamFormats | None = None

    def replayed_from(self, first: int, rows_max: int | None = None) -> list[SliceRow]:
        """Return the next committed slices of the rewind, from slice `first` on: about `rows_max` records, and one slice at
        least. Batches are asked for one after the other; the last one may be asked for again."""
        config = self._config
        if self._replay is None:
            self._replay = Replay(
                self._ledger,
                config.planner.job,
                config.plan.slice_committed,
                config.replay_rows_max,
                config.plan.restores_from,
                merges_restored=config.plan.merges_restored,
            )
        self._replay.rows_max = config.replay_rows_max if rows_max is None else min(rows_max, config.replay_rows_max)
        return self._replay.batch_from(first)

    def batch(
        self, first: int, slices: Sequence[SliceRow], parallelism: int, before: CheckpointRow | None = None
    ) -> tuple[list[list[Piece]], bytes]:
        """Return what each task of a batch reads, and the encoded `SliceWork`. `before`: the checkpoint before slice `first`, if
        the caller has it."""
        decoding = self._config.task.decoding
        self._formats = self._formats or StreamFormats(self._ledger, decoding.formats, decoding.lookups)
        spread = spread_pieces(slices, parallelism, self._formats)
        return spread, encode(self._work(first, slices[-1], before))

    def _work(self, first: int, last: SliceRow, before: CheckpointRow | None) -> SliceWork:
        """Return the work of the keyed tasks in the batch from slice `first` to `last`."""
        ledger, plan = self._ledger, self._config.plan
        is_new = last.number > plan.slice_committed
        if before is None or before.slice != first - 1:
            before = ledger.checkpoint(last.job, first - 1) if first > 1 else None
        # A rewind begins with windows that are open only in part; a snapshot continues those of the slice before.
        begins_empty = first == plan.slice_first and plan.reaches_back_to_ms is not None
        restores = plan.restores(last.number)
        emits = is_new or restores
        return SliceWork(
            number=last.number,
            emits=emits,
            from_ms=plan.closed_ms(before) if before and not begins_empty else None,
            to_ms=None if is_new else plan.closed_ms(ledger.checkpoint(last.job, last.number)),
            new_slice=last if is_new else None,
            dead_letter_offsets=before.dead_letter_offsets if before else {},
            result_offsets=before.result_offsets if before else {},
            emitted_ms=plan.closed_ms(before) if before and emits else None,
            digest=last.digest if emits else "",
            restores=restores,
        )


def spread_pieces(
    slices: Sequence[SliceRow], parallelism: int, formats: StreamFormats | None = None
) -> list[list[Piece]]:
    """Return the pieces of each task: at least one task, at most `parallelism`. A partition's pieces are in one task."""
    pieces: dict[tuple[str, int], list[Piece]] = {}
    for row in slices:
        for stream, ends in row.offsets.items():
            for partition, offset_next in sorted(ends.items()):
                offset_first = row.offsets_first[stream].get(partition, 0)
                if offset_first < offset_next:
                    offsets = OffsetRange(stream, partition, offset_first, offset_next)
                    pieces.setdefault((stream, partition), []).append(Piece.of_slice(row, offsets, formats))
    sizes = {place: sum(piece.offsets.offset_count for piece in parts) for place, parts in pieces.items()}
    enough = 1 + sum(sizes.values()) // _TASK_RECORDS_MIN
    tasks: list[list[Piece]] = [[] for _ in range(max(1, min(parallelism, len(pieces), enough)))]
    loads = [0] * len(tasks)
    for place in sorted(pieces, key=lambda place: (-sizes[place], place)):
        lightest = loads.index(min(loads))
        tasks[lightest] += pieces[place]
        loads[lightest] += sizes[place]
    return tasks
