"""Records that are JSON need no reader. This module imports their fast paths."""

from strandline.processing.formats.columns.exploded_columns import ExplodedColumns
from strandline.processing.formats.columns.json_columns import JsonColumns

__all__ = ["ExplodedColumns", "JsonColumns"]
