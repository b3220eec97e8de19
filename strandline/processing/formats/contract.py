"""The contract of formats, built in or from packages. `tests/contract/test_formats.py` checks all formats with `check_format`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.columns.read_columns import ROWS_MIN, DecodedColumns
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.proposals import infer_from_topic, infer_stream
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas
from strandline.processing.pipelines.event_time import EventTimeSource

_SHUFFLES = 2
_RECORDS = 4 * ROWS_MIN


@dataclass(frozen=True)
class FormatUnderTest:
    """A stream of a format, and records for it."""

    document: dict[str, Any]
    """Document of the stream, without its name."""
    good: Sequence[bytes]
    """Records that are accepted. At least two different ones."""
    broken: Sequence[bytes]
    """Records that are rejected."""
    has_columns: bool = True
    """True if the good records are plain: the fast path must read most of them."""
    schemas: RegisteredSchemas | None = None
    """Schemas of the registry, if the records name them."""
    sample: bytes | None = None
    """Sample for which a document of this format is proposed. None if there is none."""
    topic: Sequence[bytes] = ()
    """Records of a topic for which a document of this format is proposed. Empty if there are none."""


@dataclass
class _Outcomes:
    rows: list[str] = field(default_factory=list)
    """Values of each row, or reason and message of its rejection, in their order."""
    letters: list[bytes | None] = field(default_factory=list)
    """Value of the dead letter of each rejected row."""
    of_columns: int = 0
    """Number of rows that the fast path read."""


class _Stream:
    def __init__(self, case: FormatUnderTest) -> None:
        self.spec = StreamSpec.from_document({"stream": "checked", **case.document})
        self._config = record_format(self.spec)
        self._schemas = case.schemas
        self._names = [one.name for one in self._config.fields]
        self._decoder = Decoder(self._config.fields, EventTimeSource(None), self._names)

    def outcomes(self, values: Sequence[bytes], *, by_columns: bool = True) -> _Outcomes:
        """Return the outcomes of these records. `by_columns`: False to leave out the fast path."""
        reader = RowReader(self._config, self._schemas)
        if not by_columns:
            reader.leave_columns()
        found = _Outcomes()
        for rows in reader.parts(values, []):
            decoded = self._decoder.decode(rows.texts, [0] * len(rows.texts), None)
            rejects = {one.index: f"{one.reason}: {one.message}" for one in decoded.rejects}
            columns = iter(zip(*(decoded.arrays[name].to_pylist() for name in self._names), strict=True))
            found.rows += [rejects[at] if at in rejects else repr(next(columns)) for at in range(len(rows.texts))]
            found.letters += [reader.dead_letter_value(values, rows, at) for at in rejects]
            if isinstance(rows.texts, DecodedColumns):
                found.of_columns += int(rows.texts.fits.sum())
        return found


def check_format(case: FormatUnderTest) -> None:
    """Raise AssertionError, with the difference, if the format violates its contract (`format.py`) for these records."""
    stream = _Stream(case)
    spec = stream.spec
    assert StreamSpec.from_document(spec.as_document()) == spec, "a stored document is the same document"
    assert spec.form.content_type.partition(b"/")[2], "a content type has two parts"
    alone = {value: stream.outcomes([value]) for value in (*case.good, *case.broken)}
    _check_records(case, alone)
    _check_columns(case, stream, alone)
    _check_mutants(case, stream)
    _check_proposals(case, spec)


def _check_records(case: FormatUnderTest, alone: dict[bytes, _Outcomes]) -> None:
    for value in case.good:
        assert alone[value].rows, f"{value!r} has a row"
        assert not alone[value].letters, f"{value!r} is accepted, and not: {alone[value].rows}"
    for value in case.broken:
        reasons = {row.partition(": ")[0] for row in alone[value].rows}
        assert reasons & {REASON_DECODE, REASON_SCHEMA}, (
            f"{value!r} is rejected with a reason, and not: {alone[value].rows}"
        )
        assert None not in alone[value].letters, f"the dead letter of {value!r} has a value"


def _check_columns(case: FormatUnderTest, stream: _Stream, alone: dict[bytes, _Outcomes]) -> None:
    """Check that neither the fast path nor neighbours change the outcome of a record."""
    chance = random.Random(1)  # noqa: S311
    plain = [chance.choice(case.good) for _ in range(_RECORDS)]
    mixed = [chance.choice([*case.good] * 8 + [*case.broken]) for _ in range(_RECORDS)]
    for values in (plain, mixed):
        expected = [row for value in values for row in alone[value].rows]
        by_columns, by_reader = stream.outcomes(values), stream.outcomes(values, by_columns=False)
        assert by_columns.rows == expected, "the fast path returns what the reader returns"
        assert by_reader.rows == expected, "neighbours change nothing"
        assert by_reader.of_columns == 0
        if case.has_columns:
            assert by_columns.of_columns * 2 > len(expected), "the fast path reads plain records"


def _check_mutants(case: FormatUnderTest, stream: _Stream) -> None:
    """Check that a record with any bytes is accepted or rejected, and that both paths agree."""
    chance = random.Random(2)  # noqa: S311
    for _ in range(_SHUFFLES):
        values = [_mutant(chance.choice(case.good), chance) for _ in range(ROWS_MIN)]
        values += [chance.choice(case.good) for _ in range(2 * ROWS_MIN)]
        assert stream.outcomes(values).rows == stream.outcomes(values, by_columns=False).rows


def _mutant(value: bytes, chance: random.Random) -> bytes:
    data = bytearray(value)
    first, last = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    piece = bytes(data[first:last])
    data[first : chance.choice([first, first + 1, last])] = chance.choice([b"", piece * 2, chance.randbytes(1)])
    return bytes(data)


def _check_proposals(case: FormatUnderTest, spec: StreamSpec) -> None:
    proposals = []
    if case.sample is not None:
        proposals.append(infer_stream("proposed", case.sample))
    if case.topic:
        proposals.append(infer_from_topic("proposed", case.topic, 1, "7d"))
    for proposal in proposals:
        assert proposal.document.get("format", "json") == spec.format, "the sample is known by its form"
        assert 2 * proposal.accepted > proposal.records, (
            f"the document accepts the sample, and not: {proposal.rejected}"
        )
