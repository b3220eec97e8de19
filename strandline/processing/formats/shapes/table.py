"""The table of shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.shapes.inner_elements import InnerElements
from strandline.processing.formats.shapes.listed_elements import ListedElements
from strandline.processing.formats.shapes.named_columns import NamedColumns
from strandline.processing.formats.shapes.object_members import ObjectMembers
from strandline.processing.formats.shapes.parallel_arrays import ParallelArrays
from strandline.processing.formats.shapes.shape import Shape, ShapeConfig

SHAPES: Mapping[str, Callable[[ShapeConfig, Sequence[RecordField], Sequence[JsonPath]], Shape]] = {
    "elements": ListedElements,
    "members": ObjectMembers,
    "arrays": ParallelArrays,
    "table": NamedColumns,
    "inner": InnerElements,
}
"""Kind of a `ShapeSpec` -> class that opens such records."""
