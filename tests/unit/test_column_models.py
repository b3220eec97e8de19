"""One record doesn't determine the cost of all others that are read as columns by its shape.

Each value in it costs a pass over all of them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.processing.formats.columns.exploded_columns import ExplodedColumns
from strandline.processing.formats.columns.json_columns import model_of
from strandline.processing.formats.columns.json_shape import CELLS_MAX, shape_of
from strandline.processing.formats.influx.columns import InfluxColumns
from strandline.processing.formats.record_fields import RecordField


def members(count: int) -> dict[str, int]:
    return {f"m{at}": at for at in range(count)}


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def test_an_object_of_very_many_values_is_no_model_and_the_next_one_is() -> None:
    wide, plain = compact(members(CELLS_MAX + 1)), compact(members(2))
    assert shape_of(wide) is None
    assert shape_of(compact(members(CELLS_MAX))) is not None
    assert model_of([wide, plain]) == shape_of(plain)


def test_of_an_exploded_record_the_elements_may_be_many_but_not_wide() -> None:
    columns = ExplodedColumns([RecordField("m0", "long")], ("r",), 1 << 30)
    many = columns.columns([compact({"r": [members(2)] * CELLS_MAX})] * 2)
    assert many is not None
    assert (many.fits.tolist(), many.counts.tolist()) == ([True, True], [CELLS_MAX, CELLS_MAX])
    assert columns.columns([compact({"r": [members(CELLS_MAX + 1)] * 2})] * 2) is None
    beside = {"x": 1, **{f"b{at}": at for at in range(CELLS_MAX)}}
    assert columns.columns([compact({**beside, "r": [members(1)] * 2})] * 2) is None


def test_lines_are_cut_only_where_most_have_as_many_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(*_: Any) -> None:
        raise AssertionError("a cell was read")

    wide = b"m" + b"".join(b",t%d=a" % at for at in range(10_000)) + b" x=1"
    monkeypatch.setattr("strandline.processing.formats.influx.columns._are", cell)
    assert InfluxColumns([RecordField("x", "double")]).columns([wide, *[b"m,t=a x=1"] * 100]) is None
