"""How the records of a job's stream are read from the log and decoded: the same for a run, an audit and a backfill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from strandline.core.record_headers import HEADER_SOURCE
from strandline.log.range_reader import RangeReader
from strandline.log.reader import OffsetRange
from strandline.processing.formats.decoder import NEVER_AHEAD, NEVER_LATE, Decoded, Decoder
from strandline.processing.formats.record_fields import record_fields
from strandline.processing.formats.topic_fields import TopicFields
from strandline.processing.source.source_config import DecodingConfig, Piece

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import, in every Python worker
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline


def decoding_of(pipeline: CheckedPipeline, kafka_bootstrap: str) -> DecodingConfig:
    """The decoding that the pipeline asks for."""
    return DecodingConfig(
        kafka_bootstrap=kafka_bootstrap,
        fields=record_fields(pipeline.stream),
        columns=pipeline.columns_needed,
        topic_fields=dict(pipeline.stream.mqtt.fields) if pipeline.stream.mqtt else {},
        event_time_source=pipeline.event_time_source,
    )


def decoder_of(config: DecodingConfig) -> Decoder:
    """A decoder, once for each task."""
    return Decoder(
        fields=config.fields,
        event_time=config.event_time_source,
        columns_needed=config.columns,
    )


@dataclass(frozen=True)
class DecodedChunk:
    """Records of one partition, in the order of their offsets, and what came of them."""

    stream: str
    partition: int
    offsets: list[int]
    values: list[bytes | None]
    log_times_ms: list[int]
    decoded: Decoded

    def accepted_places(self) -> list[int]:
        """The place in the chunk of each accepted record, in their order."""
        rejected = {reject.index for reject in self.decoded.rejects}
        return [at for at in range(len(self.values)) if at not in rejected]


def decode_pieces(config: DecodingConfig, decoder: Decoder, pieces: Sequence[Piece]) -> Iterator[DecodedChunk]:
    """Read and decode the pieces in order, in chunks. A chunk may span slices; each record is judged by its own."""
    reader = _log_reader(config.kafka_bootstrap)
    topic_fields = None
    if config.topic_fields:
        topic_fields = TopicFields(config.topic_fields, {field.name: field.type for field in config.fields})
    runs = {_whole(run): run for run in _adjoining(pieces)}
    for records in reader.read(list(runs), HEADER_SOURCE if topic_fields else None):
        whole, run = records.offset_range, runs[records.offset_range]
        ends = np.array([piece.offsets.offset_next for piece in run])
        watermarks_ms = np.array([NEVER_LATE if piece.watermark_ms is None else piece.watermark_ms for piece in run])
        ahead_ms = np.array([NEVER_AHEAD if piece.max_ahead_ms is None else piece.max_ahead_ms for piece in run])
        offsets, values, log_times_ms = records.offsets, records.values, records.log_times_ms
        whole_values = topic_fields.fill_in(values, records.header_values) if topic_fields else values
        of_piece = np.searchsorted(ends, offsets, "right")
        decoded = decoder.decode(whole_values, log_times_ms, watermarks_ms[of_piece], ahead_ms[of_piece])
        yield DecodedChunk(whole.stream, whole.partition, offsets, values, log_times_ms, decoded)


def _whole(run: Sequence[Piece]) -> OffsetRange:
    """The range that the pieces make up."""
    last = run[-1].offsets
    return replace(last, offset_first=run[0].offsets.offset_first)


def _adjoining(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Group pieces that follow each other in one partition: each group is fetched at once."""
    run: list[Piece] = []
    for piece in pieces:
        before = run[-1].offsets if run else None
        here = piece.offsets
        if before and (before.stream, before.partition, before.offset_next) != (
            here.stream,
            here.partition,
            here.offset_first,
        ):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


_readers: dict[str, RangeReader] = {}


def _log_reader(bootstrap: str) -> RangeReader:
    """This process's reader: Python workers are reused, and a new reader has to connect first."""
    if bootstrap not in _readers:
        _readers[bootstrap] = RangeReader(bootstrap)
    return _readers[bootstrap]
