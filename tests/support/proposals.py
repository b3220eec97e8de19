"""Runs the document that `stream infer` proposes over its sample, as `pipeline run` would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.record_files import read_records
from strandline.processing.desk.records import DeskRecords
from strandline.processing.formats.proposals import Proposal, infer_stream
from strandline.processing.formats.record_rows import record_format

_NOW_MS = 1_800_000_000_000
NOTE = "for a pipeline: "
ARCHIVE = [{"emit": [{"elasticsearch": "archive"}]}]


@dataclass(frozen=True)
class Tried:
    """Outcome of a proposal."""

    proposal: Proposal
    results: list[dict[str, Any]]
    letters: list[LocalDeadLetter]


def try_proposal(
    sample: bytes,
    tmp_path: Path,
    *,
    steps: list[dict[str, Any]] | None = None,
    next_sample: bytes | None = None,
    suffix: str = ".ndjson",
) -> Tried:
    """Propose a document for the sample, and run it with the event time of its note.

    `steps`: steps of the pipeline; by default all rows are emitted. `next_sample`: records to run instead of the sample.
    """
    proposal = infer_stream("devices", sample)
    (note,) = (note for note in proposal.notes if NOTE in note)
    pipeline = {
        "pipeline": "devices-all",
        "input": {"stream": "devices"},
        **yaml.safe_load(note[note.index(NOTE) + len(NOTE) :]),
        "steps": steps or ARCHIVE,
    }
    document = proposal.document | {"partitions": 1}
    checked = read_pipeline(yaml.safe_dump_all([document, pipeline], sort_keys=False).encode(), "devices.yaml")
    (file := tmp_path / f"sample{suffix}").write_bytes(sample if next_sample is None else next_sample)
    config = record_format(StreamSpec.from_document(document))
    values: list[bytes | None] = [one for piece in read_records(file, config) for one in piece]
    desk = Desk(checked, 7)
    times = [_NOW_MS] * len(values) if "{from: log}" in note else None  # as with --log-time now
    found = [*desk.feed(DeskRecords(values, [0] * len(values), times)), *desk.drain()]
    results = [json.loads(one.document.source) for one in found if isinstance(one, DeskResult)]
    return Tried(proposal, results, [one for one in found if isinstance(one, LocalDeadLetter)])
