"""Records for an emission of records, in the form in which they cross Spark's exchange: one blob for each chunk and stage.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.processing.operators.blobs import pack, parts_of, unpack
from strandline.processing.operators.dedupe.candidates import DuplicateRecords
from strandline.processing.operators.record_chain import RecordsAtStage
from strandline.processing.pipelines.stages import RecordStage
from strandline.results.writer import ELEMENT, EVENT_US, OFFSET, PARTITION, PROBLEM

_STAGE = b"stage"

_BATCH_BYTES = 256 << 20
"""Maximum number of bytes of chunks that are one batch."""

RecordRowsByStage = dict[str, list[pa.RecordBatch]]


def without_duplicates(
    rows: RecordRowsByStage, stages: Sequence[RecordStage], repeated: DuplicateRecords | None
) -> RecordRowsByStage:
    """Return the rows of each stage, as `unpack_record_rows` returns them, without duplicates for stages after a `dedupe`."""
    if repeated is None:
        return rows
    deduped = {stage.name for stage in stages if stage.dedupe is not None}
    return {
        name: [repeated.without(one, PARTITION, OFFSET, ELEMENT) for one in batches] if name in deduped else batches
        for name, batches in rows.items()
    }


def pack_record_rows(
    records: RecordsAtStage,
    partition: int,
    event_us: pa.Array,
    offsets: npt.NDArray[np.int64],
    elements: Sequence[int | None] | None,
) -> bytes:
    """Return the records of one chunk that reach one stage, as a blob. `partition`: label of the partition (`partition_labels`).
    `event_us`, `offsets`, `elements`: of all accepted rows of the chunk."""
    rows = records.rows
    columns = {
        EVENT_US: event_us.take(pa.array(rows)),
        PARTITION: pa.array(np.full(len(rows), partition, np.int32)),
        OFFSET: pa.array(offsets[rows]),
        ELEMENT: pa.nulls(len(rows), pa.int32())
        if elements is None
        else pa.array(elements, pa.int32()).take(pa.array(rows)),
        **records.columns,
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    return pack([batch.replace_schema_metadata({_STAGE: records.stage.name.encode()})])


def unpack_record_rows(blobs: Sequence[tuple[int, int, bytes]]) -> RecordRowsByStage:
    """Return stage -> its rows with PROBLEM, in the form of ResultWriter, in batches of bounded size. The rows are in log
    order, partition by partition. `blobs`: (partition, sequence, blob), in any order."""
    found: RecordRowsByStage = {}
    for _, _, blob in sorted(blobs, key=lambda one: one[:2]):
        (batch,) = unpack(blob)
        found.setdefault(batch.schema.metadata[_STAGE].decode(), []).append(batch)
    return {
        stage: [_batch_of(part) for part in parts_of(batches, lambda one: one.nbytes, _BATCH_BYTES)]
        for stage, batches in found.items()
    }


def _batch_of(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    return batch.append_column(PROBLEM, pa.nulls(batch.num_rows, pa.string()))
