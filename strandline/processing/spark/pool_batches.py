"""The batches of a pool as Spark jobs of one stage. A *pool* runs the slices of several jobs, its members, in one Spark session.
A *batch* computes one slice of each of some members.

A batch is a job over an RDD that exists once for each number of tasks. The slices travel as a local property of the job. So Spark
plans no query, writes no log of offsets, and starts no planner process. A batch takes a fraction of the CPU time of a micro-batch
of a streaming query (decision 133). If a Python worker is lost, Spark repeats the task.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.errors import StrandlineError
from strandline.core.portable_errors import typed_for_driver
from strandline.processing.emission.member_outcomes import MemberOutcome
from strandline.processing.emission.pool_task import PoolTask, decode_outcomes, encode_outcomes
from strandline.processing.emission.work_marks import forget_marks, read_marks
from strandline.processing.source.member_slices import MemberSlice
from strandline.processing.spark.errors import typed_error

if TYPE_CHECKING:
    from pyspark import RDD

_SLICES = "strandline.slices"
"""Local property of a Spark job: the slices of each task."""


class PoolBatches:
    """Runs the batches of one pool in a Spark session. Call all methods except `cancel` from one thread."""

    def __init__(self, spark: SparkSession, task: PoolTask, on_lost_java: Callable[[], None] | None = None) -> None:
        """`on_lost_java`: called if the JVM has ended. Default: the batch fails."""
        self._on_lost_java = on_lost_java
        self._context = spark.sparkContext
        self._task = task
        self._group = f"pool-{uuid4().hex}"
        self._has_group = False
        self._jobs: dict[int, RDD[bytes]] = {}
        """Number of tasks -> RDD."""

    def warm_up(self, tasks: int) -> None:
        """Start this number of Python workers, and let them import what they need. Call it before `run`; any thread may. Raises
        StrandlineError."""
        self._collected([[] for _ in range(tasks)])

    def run(self, tasks: Sequence[Sequence[MemberSlice]]) -> list[MemberOutcome]:
        """Process the slices of all members, spread over tasks, and return the outcome of each. Raises StrandlineError if the
        batch as a whole failed."""
        if not self._has_group:
            self._context.setJobGroup(self._group, "slices of the members of a pool", interruptOnCancel=True)
            self._has_group = True
        return self._collected(tasks)

    def _collected(self, tasks: Sequence[Sequence[MemberSlice]]) -> list[MemberOutcome]:
        if len(tasks) not in self._jobs:
            self._jobs[len(tasks)] = self._job_of(len(tasks))
        packed = base64.b85encode(cloudpickle.dumps([list(one) for one in tasks]))  # type: ignore[no-untyped-call]
        self._context.setLocalProperty(_SLICES, packed.decode("ascii"))
        try:
            return list(decode_outcomes(self._jobs[len(tasks)].collect()))
        except (PySparkException, Py4JError, OSError) as error:
            if self._on_lost_java is not None and not self._is_java_alive():
                self._on_lost_java()
            if isinstance(error, OSError):
                raise StrandlineError(f"Spark does not answer: {error}; the job starts again") from error
            raise typed_error(error) from error

    def cancel(self) -> None:
        """End the batch that another thread runs."""
        self._context.cancelJobGroup(self._group)

    def named(self) -> set[str]:
        """Return the jobs that workers were working on when they ended."""
        directory = self._task.directory.marks
        gone = [one for one in read_marks(directory) if not Path(f"/proc/{one.pid}").exists()]
        forget_marks(directory, [one.pid for one in gone])
        return {one.job for one in gone if one.job}

    def _is_java_alive(self) -> bool:
        try:
            return not self._context._jsc.sc().isStopped()
        except (Py4JError, OSError):
            return False

    def _job_of(self, tasks: int) -> RDD[bytes]:
        task = self._task

        def outcomes(number: int, _rows: Iterable[int]) -> Iterator[bytes]:
            with typed_for_driver():
                found = encode_outcomes(task.outcomes(_slices_of(number)))
            yield found

        return self._context.parallelize(range(tasks), tasks).mapPartitionsWithIndex(outcomes)


def _slices_of(task: int) -> list[MemberSlice]:
    context = TaskContext.get()
    packed = context.getLocalProperty(_SLICES) if context is not None else None
    assert packed is not None, "the driver sets the slices before each job"
    slices: list[list[MemberSlice]] = cloudpickle.loads(base64.b85decode(packed))
    return slices[task]
