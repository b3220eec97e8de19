"""The last records of a topic, read from its end backwards: for those who look for one that somebody wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from strandline.core.errors import LogTruncated, NotFound
from strandline.log.index import LogIndex
from strandline.log.reader import LogMessage, LogReader, OffsetRange

_OFFSETS_FIRST = 500


def last_records(
    bootstrap: str, index: LogIndex, topic: str, since: Mapping[int, int], is_wanted: Callable[[LogMessage], bool]
) -> list[LogMessage]:
    """Of each partition the wanted records among the last ones, in order; at least one, if there is any from `since` on.

    `since`: partition -> offset. Reads more and more from the end backwards until it finds one, so that a long tail of other
    records or of transaction markers hides nothing. A topic that doesn't exist has no records, and what retention removes during
    the look is left out. Raises LogUnavailable, LogTruncated.
    """
    try:
        ends = index.settled_ends(topic)
        starts = index.starts(
            topic
        )  # after the ends: they may take long, while the log begins later or has a new partition
    except NotFound:
        return []
    found: list[LogMessage] = []
    with closing(LogReader(bootstrap)) as reader:
        for partition, end in ends.items():
            first, offsets = max(since.get(partition, 0), starts[partition]), _OFFSETS_FIRST
            here: list[LogMessage] = []
            while end > first and not here:
                begin = max(first, end - offsets)
                try:
                    for messages in reader.read(OffsetRange(topic, partition, begin, end)):
                        here += filter(is_wanted, messages)
                except LogTruncated:
                    start = index.starts(topic)[partition]
                    if start <= begin:
                        raise
                    first, here = start, []  # what retention removed meanwhile is not looked for
                    continue
                end, offsets = begin, 4 * offsets
            found += here
    return found
