"""Labels: one number for a partition of one of several streams. They order rows, and distinguish partial results. Pure.

The label of a partition of the first stream is its number, so a pipeline with one stream needs no labels. The labels of
the next streams follow. So rows are ordered by the index of their stream in the document, then by partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # building a pipeline in Python must not wait for the import of numpy
    import numpy as np
    import numpy.typing as npt

INPUTS_MAX = 16
"""Maximum number of streams that one pipeline reads."""
PARTITIONS_MAX = 4_096
"""Maximum number of partitions of each stream: more than four times as many as a document may request."""

Numbers = TypeVar("Numbers", int, "npt.NDArray[np.int64]")


def label_of(place: int, partition: int) -> int:
    """Return the label of a partition. `place`: index of its stream among those that the pipeline reads."""
    return place * PARTITIONS_MAX + partition


def stream_index_of(label: Numbers) -> Numbers:
    """Return the index of the stream."""
    return label // PARTITIONS_MAX


def partition_of(label: Numbers) -> Numbers:
    """Return the partition within its stream."""
    return label % PARTITIONS_MAX
