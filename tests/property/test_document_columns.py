"""Documents made by columns are, to the byte, those that are made row by row as document.py describes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.results.bulk import cut_bulks
from strandline.results.document import Document, DocumentShape, document_id, format_timestamp
from strandline.results.names import index_name, write_alias
from strandline.results.writer import Refused
from tests.support.stage_batches import stage_batch

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_US = 253_402_300_799_999_999
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=8) | st.text('"\\\n\r\t\x00\x1f\x7f/,é€𝄞\u2028', max_size=8),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats()
    | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e15, 1e16, 1e17, 1e-5, 1e-7, 22.0]),
    "boolean": st.booleans(),
    "timestamp": st.integers(-(10**14), 10**14).map(lambda ms: ms * 1000)
    | st.integers(-62_135_596_800_000_000, LAST_US)
    | st.sampled_from([-62_135_596_800_000_001, LAST_US, LAST_US + 1, 2**63 - 1]),
    "decimal(10,2)": st.decimals(-99_999_999, 99_999_999, places=2),
    "decimal(38,20)": st.decimals(-(10**17), 10**17, places=20) | st.sampled_from([Decimal("0E-20"), Decimal("1E-20")]),
}
STARTS_MS = st.sampled_from([0, 60_000, 1_714_564_800_000, 1_717_200_000_000, LAST_US // 1000, -62_135_596_860_000])


@st.composite
def stages(draw: st.DrawFn) -> tuple[DocumentShape, list[tuple[Any, ...]], list[int]]:
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5))
    fields = tuple((f'f"{number}', type_name) for number, type_name in enumerate(types))
    keys = draw(st.integers(0, len(fields)))
    shape = DocumentShape(
        "emit",
        "jöb",
        "stage",
        3,
        fields[:keys],
        fields[keys:],
        is_stream=draw(st.booleans()),
        is_once=draw(st.booleans()),
        generation=draw(st.integers(1, 2)),
    )
    row = st.tuples(*[st.none() | VALUES[type_name] for type_name in types])
    rows = draw(st.lists(row, max_size=12))
    return shape, rows, draw(st.lists(STARTS_MS, min_size=len(rows), max_size=len(rows)))


def row_by_row(shape: DocumentShape, rows: list[tuple[Any, ...]], starts_ms: list[int]) -> Iterator[Document | Refused]:
    """Yield the documents, computed row by row."""
    for row, start_ms in zip(rows, starts_ms, strict=True):
        end_ms, problem = start_ms + 60_000, None
        stem = shape.emit_name if shape.generation == 1 else f"{shape.emit_name}.g{shape.generation}"
        try:
            times = [format_timestamp(start_ms * 1000), format_timestamp(end_ms * 1000)]
            index = shape.emit_name if shape.is_stream else index_name(stem, end_ms)
        except OverflowError:
            times, index = [str(start_ms), str(end_ms)], shape.emit_name if shape.is_stream else None
            if index is None and start_ms < 0:
                index = index_name(stem, end_ms)
            reason = f"the window {start_ms} to {end_ms} ms lies outside the years 1 to 9999"
            problem = ("timestamp_out_of_range", reason)
        content: dict[str, Any] = {"@timestamp": times[1], "window": {"start": times[0], "end": times[1]}}
        if shape.is_stream:
            content |= {"window_start": times[0], "window_end": times[1]}
        key: list[Any] = []
        for (name, type_name), value in zip(shape.fields, row, strict=True):
            shown, part = value, value
            if value is not None and type_name == "timestamp":
                try:
                    shown, part = format_timestamp(value), EPOCH + timedelta(microseconds=value)
                except OverflowError:
                    shown = str(value)
                    reason = f"{name} lies outside the years 1 to 9999 ({value} us)"
                    problem = problem or ("timestamp_out_of_range", reason)
            elif isinstance(value, Decimal):
                shown = format(value, "f")
            elif isinstance(value, float) and not math.isfinite(value):
                shown = str(value)
                problem = problem or (
                    "non_finite_number",
                    f"{name} is {value}, which JSON cannot hold; guard the expression",
                )
            content[name] = shown
            key.append(part)
        origin = {"job": shape.job, "stage": shape.stage, "version": shape.version, "epoch": 7, "emission": 11}
        source = msgspec.json.encode(content | {"strandline": origin})
        identity = document_id(shape.job, shape.stage, start_ms, end_ms, tuple(key[: len(shape.by)]))
        identity += "" if shape.is_once else ".7"
        if problem:
            yield Refused(identity, index, None, *problem, source)
        else:
            assert index is not None
            yield Document(identity, index, source)


@given(stages(), st.integers(1, 5), st.integers(1, 1_500))
@example((DocumentShape("emit", "jöb", "stage", 3, (), (("n", "long"),)), [], []), 1, 1)
def test_columns_give_the_bytes_of_rows(
    stage: tuple[DocumentShape, list[tuple[Any, ...]], list[int]], documents_max: int, bytes_max: int
) -> None:
    """Bulks too: they hold the accepted documents in order, and are as large as they may be."""
    shape, rows, starts_ms = stage
    batch = stage_batch(shape.fields, rows, starts_ms=starts_ms)
    expected = list(row_by_row(shape, rows, starts_ms))
    assert list(shape.documents(batch, 7, 11)) == expected
    documents, refused = shape.columns(batch, 7, 11).sorted_out()
    good = [one for one in expected if isinstance(one, Document)]
    assert refused == [one for one in expected if isinstance(one, Refused)]
    bulks = list(cut_bulks(documents, documents_max, bytes_max))
    assert [one for bulk in bulks for one in bulk.read()] == good
    lines = [
        msgspec.json.encode({"create": {"_index": write_alias(one.index), "_id": one.id}}) + b"\n" + one.source + b"\n"
        for one in good
    ]
    assert b"".join(bulk.body for bulk in bulks) == b"".join(lines)
    for bulk, one in zip(bulks, itertools.accumulate(bulk.count for bulk in bulks), strict=True):
        assert bulk.count == 1 or (bulk.count <= documents_max and len(bulk.body) <= bytes_max)
        items = [{"create": {"_index": made.index, "_id": made.id, "status": 201}} for made in bulk.read()]
        assert bulk.created == msgspec.json.encode({"items": items})
        if one < len(good):
            assert bulk.count == documents_max or len(bulk.body) + len(lines[one]) > bytes_max
