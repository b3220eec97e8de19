"""The facts about the slice at work that an emission needs in its task.

Spark builds a stream's plan once, so an emission inside the plan can't be given a slice number when it is made; nor can the
number travel in the rows, because a window's row comes out of state that many slices filled. Spark's way to send a value along
with one job from the driver to its tasks is a local property. `publish` and `read` are its only users: the committer publishes
before the batch's one action, each task of that action reads. A backfill builds a plan for each chunk and passes the value as
an argument.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyspark import SparkContext, TaskContext

from strandline.ledger.states import CheckpointRow, Offsets

_PROPERTY = "strandline.slice_context"


@dataclass(frozen=True)
class SliceContext:
    """One slice, and where the streams that it writes to ended at the checkpoint before it."""

    number: int
    """The slice's number, which is the emission's number."""
    dead_letter_offsets: dict[int, int]
    """Partition -> offset."""
    result_offsets: Offsets
    """Stream -> partition -> offset."""

    @classmethod
    def after(cls, checkpoint: CheckpointRow | None, number: int) -> SliceContext:
        """The context of slice `number`, with the checkpoint before it (None: there is none)."""
        if checkpoint is None:
            return cls(number, {}, {})
        return cls(number, checkpoint.dead_letter_offsets, checkpoint.result_offsets)


def publish(spark: SparkContext, context: SliceContext) -> None:
    """Send the context along with every Spark job that this thread starts from now on."""
    spark.setLocalProperty(_PROPERTY, json.dumps(asdict(context)))


def read(task: TaskContext) -> SliceContext:
    """The context that was published for the job of this task."""
    text = task.getLocalProperty(_PROPERTY)
    assert text is not None, "the driver publishes a slice's context before the action"
    found = json.loads(text)
    return SliceContext(
        found["number"],
        _offsets(found["dead_letter_offsets"]),
        {stream: _offsets(ends) for stream, ends in found["result_offsets"].items()},
    )


def _offsets(ends: dict[str, int]) -> dict[int, int]:
    """JSON's names are texts."""
    return {int(partition): offset for partition, offset in ends.items()}
