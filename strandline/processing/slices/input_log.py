"""The streams that one job reads, as one log. A *label* is the number of a partition in it (`partition_labels`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from strandline.core.errors import NotFound, PermanentError, StrandlineError
from strandline.ledger.states import Offsets, SliceRow
from strandline.log.answers import answer_of
from strandline.processing.slices.continuity import LogContinuity, SealPositions
from strandline.processing.slices.look import Checksums
from strandline.results.records.partition_labels import PARTITIONS_MAX, label_of

Vector = Mapping[int, int]


class StreamIndex(Protocol):
    """Starts and ends of streams. See `log.index.LogIndex`."""

    def starts(self, stream: str) -> dict[int, int]: ...
    def ends(self, stream: str) -> dict[int, int]: ...
    def ends_with_open(self, stream: str) -> dict[int, int]: ...
    def offsets_at(self, stream: str, log_time_ms: int, ends: Vector) -> dict[int, int]: ...
    def not_writable(self, stream: str) -> set[int]: ...
    def newest_log_time(self, stream: str) -> int: ...
    def partitions(self, stream: str) -> Sequence[int]: ...
    def topic_id(self, stream: str) -> str: ...


class InputLog:
    """Queries the index for each stream. Every method raises the errors of the index. It raises PermanentError if the pipeline
    reads several streams and one has too many partitions."""

    def __init__(self, index: StreamIndex, streams: Sequence[str]) -> None:
        self._index = index
        self.streams = list(streams)

    def starts(self) -> dict[int, int]:
        """The first offset of each partition."""
        return self._of_each(self._index.starts)

    def ends(self) -> dict[int, int]:
        """The end of each partition that may be read."""
        return self._of_each(self._index.ends)

    def ends_with_open(self) -> dict[int, int]:
        """The end of each partition, with the records of open transactions."""
        return self._of_each(self._index.ends_with_open)

    def offsets_at(self, log_time_ms: int, ends: Vector) -> dict[int, int]:
        """The first offset of each partition with a log time from this one on, or its end."""
        of_stream = self.by_stream(ends)
        return self._of_each(lambda stream: self._index.offsets_at(stream, log_time_ms, of_stream[stream]))

    def not_writable(self) -> set[int]:
        """The partitions that can't be written now, or of which this isn't known."""
        return set(self._of_each(lambda stream: dict.fromkeys(self._index.not_writable(stream), 0)))

    def newest_log_time(self) -> int:
        """The newest log time of all records in all streams."""
        return max(self._index.newest_log_time(stream) for stream in self.streams)

    def labelled(self, offsets: Offsets) -> dict[int, int]:
        """Return values by label from values by stream and partition."""
        return self._of_each(lambda stream: offsets.get(stream, {}))

    def by_stream(self, vector: Vector) -> dict[str, dict[int, int]]:
        """Return values by stream and partition from values by label. Every stream has an entry."""
        if len(self.streams) == 1:
            return {self.streams[0]: dict(vector)}
        found: dict[str, dict[int, int]] = {stream: {} for stream in self.streams}
        for label, one in vector.items():
            place, partition = divmod(label, PARTITIONS_MAX)
            found[self.streams[place]][partition] = one
        return found

    def stream_of(self, label: int) -> str:
        """The stream of a partition."""
        return self.streams[label // PARTITIONS_MAX if len(self.streams) > 1 else 0]

    def lacks_a_partition(self, offsets: Offsets) -> bool:
        """Return True if a topic has a partition that isn't in `offsets`."""
        return any(not offsets[one].keys() >= set(self._index.partitions(one)) for one in self.streams)

    def _of_each(self, ask: Callable[[str], Mapping[int, int]]) -> dict[int, int]:
        if len(self.streams) == 1:
            return dict(ask(self.streams[0]))
        found: dict[int, int] = {}
        for place, stream in enumerate(self.streams):
            answer = ask(stream)
            if any(partition >= PARTITIONS_MAX for partition in answer):
                raise PermanentError(
                    f"stream {stream} has more than {PARTITIONS_MAX:,} partitions, and a pipeline that reads several streams "
                    "takes no more of each; read it in a pipeline of its own"
                )
            found.update((label_of(place, partition), one) for partition, one in answer.items())
        return found


class InputContinuity:
    """Checks for all streams of a job that the log still contains what the job has read. See `continuity.py`."""

    def __init__(self, logs: Mapping[str, LogContinuity], log: InputLog, index: StreamIndex) -> None:
        self._logs = logs
        self._log = log
        self._index = index

    def reaches(self, ends: Vector, read: Vector) -> bool:
        """Return True if `LogContinuity.reaches` does for each stream. `ends`, `read`: label -> offset."""
        ends_of, read_of = self._log.by_stream(ends), self._log.by_stream(read)
        return all([one.reaches(ends_of[stream], read_of[stream]) for stream, one in self._logs.items()])

    def seal_positions(self, row: SliceRow, done: SliceRow | None) -> SealPositions:
        """Return the places of all streams: see `LogContinuity.seal_positions`."""
        of_each = [one.seal_positions(row, done) for one in self._logs.values()]
        return SealPositions([at for one in of_each for at in one.new], [at for one in of_each for at in one.old])

    def sealed(self, row: SliceRow, done: SliceRow | None, new: Checksums, old: Checksums) -> SliceRow | None:
        """See `LogContinuity.sealed`."""
        sealed: SliceRow | None = row
        for one in self._logs.values():
            sealed = one.sealed(sealed, done, new, old) if sealed is not None else None
        return sealed

    def require_same_topics(self, topic_ids: Mapping[str, str | StrandlineError]) -> None:
        """Check each stream: see `LogContinuity.require_same_topic`. Raises the errors among the answers."""
        for stream, one in self._logs.items():
            one.require_same_topic(answer_of(topic_ids, stream))

    def mark_suspect(self, missing: NotFound) -> None:
        """Find the topic that a poll did not find. Call `mark_suspect` for its stream, which can raise LogChanged."""
        for stream, one in self._logs.items():
            try:
                if len(self._logs) > 1:
                    self._index.topic_id(stream)
                    continue
            except NotFound:
                pass
            one.mark_suspect(missing)

    def clear_suspect(self) -> None:
        """Note that a look found the topics."""
        for one in self._logs.values():
            one.clear_suspect()
