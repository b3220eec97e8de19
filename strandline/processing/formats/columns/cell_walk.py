"""Cells of texts, one record a line, as columns: where each cell stands is known, and what it is as a number or a text is found
here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.formats.columns.byte_walk import ByteWalk, Places
from strandline.processing.formats.columns.read_columns import Column, is_whole
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.text_values import NUMBER

WHOLE = r"-?(?:0|[1-9]\d{0,17}|[1-8]\d{18})"
"""A number that 64 bits hold."""


class CellWalk:
    """The lines of some records, each with its end behind it."""

    def __init__(self, values: Sequence[bytes | None], refused: bytes) -> None:
        """`refused`: records with any of these bytes are marked, and those that are not one line."""
        self.walk = ByteWalk([b"\n" if value is None else value + b"\n" for value in values])
        self.starts: Places = self.walk.at.copy()
        self.ends: Places = self.walk.ends - 1
        """Where the line's end stands."""
        total = int(self.walk.ends[-1])
        self.data = self.walk.data[:total]
        refuses = np.zeros(256, np.bool_)
        refuses[list(refused + b"\n")] = True
        bad = np.flatnonzero(refuses[self.data])
        if len(bad) > len(values):
            rows = np.searchsorted(self.walk.ends, bad, "right")
            self.walk.fits &= np.bincount(rows, minlength=len(values)) == 1
        self.walk.fits &= np.array([value is not None for value in values])

    def require_utf8(self) -> None:
        """Mark the lines that are no UTF-8."""
        if (self.data > 0x7F).any():
            self.walk.text_at(self.starts, self.ends - self.starts, np.ones(len(self.walk), np.bool_))

    def column(self, field: RecordField, starts: Places, ends: Places, suffix: bytes = b"") -> Column:
        """The cells as values of the field; an empty one is a null. `suffix`: with which each one ends that is not empty."""
        present = ends > starts
        if suffix:
            ends = np.where(present, ends - len(suffix), ends)
        lengths = np.where(self.walk.fits, np.maximum(ends - starts, 0), 0)
        texts = self.walk.text_at(starts, lengths, present)
        if field.type == "string":
            return texts
        if field.type == "boolean":
            is_true = np.array(pc.equal(texts.values, "true").fill_null(False))
            self.walk.fits &= is_true | np.array(pc.equal(texts.values, "false").fill_null(False)) | ~present
            return Column(is_true, present)
        return Column(self._numbers(texts, lengths, is_whole=is_whole(field)), present)

    def require_form(self, starts: Places, ends: Places, form: str) -> None:
        """Mark the records in which the cell is not of this form."""
        lengths = np.where(self.walk.fits, np.maximum(ends - starts, 0), 0)
        self._of_form(self.walk.text_at(starts, lengths, ends > starts), lengths, form)

    def _of_form(self, texts: Column, lengths: Places, form: str) -> pa.Array:
        """The texts that are of the form, and "0" for others, whose records are marked unless they have none."""
        is_empty = lengths == 0
        values = pc.if_else(pa.array(is_empty), "0", texts.values.fill_null("0")) if is_empty.any() else texts.values
        joined = "\n".join(values.to_pylist()) + "\n"
        if re.fullmatch(rf"(?:{form}\n)*+", joined, re.ASCII) is None:
            fitting = pc.match_substring_regex(values, f"^{form}$")
            self.walk.fits &= np.array(fitting)
            values = pc.if_else(fitting, values, "0")
        return values

    def _numbers(self, texts: Column, lengths: Places, *, is_whole: bool) -> Any:
        values = self._of_form(texts, lengths, WHOLE if is_whole else NUMBER)
        try:
            return np.array(values.cast(pa.int64() if is_whole else pa.float64()))
        except pa.ArrowInvalid:  # a number beyond what there are
            self.walk.fits[:] = False
            return np.zeros(len(values))
