"""One number for a partition of one of several streams: by it rows are ordered, and partial results told apart. Pure.

The partitions of the first stream are called by their own numbers, so one stream alone needs no labels. Those of the next ones
follow: rows are ordered by the place of their stream in the document, then by partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # who builds a pipeline in Python waits for nothing that computes
    import numpy as np
    import numpy.typing as npt

INPUTS_MAX = 16
"""Streams that one pipeline reads."""
PARTITIONS_MAX = 4_096
"""Of each of several streams: more than four times as many as a document may ask for."""

Numbers = TypeVar("Numbers", int, "npt.NDArray[np.int64]")


def label_of(place: int, partition: int) -> int:
    """The label of a partition. `place`: of its stream among those that the pipeline reads."""
    return place * PARTITIONS_MAX + partition


def stream_place_of(label: Numbers) -> Numbers:
    """The place of the stream."""
    return label // PARTITIONS_MAX


def partition_of(label: Numbers) -> Numbers:
    """The partition within its stream."""
    return label % PARTITIONS_MAX
