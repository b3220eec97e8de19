"""Faults of senders that a slice shows: keys that are ahead of their log time, and partitions whose records are all rejected.

A source task counts them (`PartitionFacts`). The commit of a slice adds them up and stores them with its checkpoint
(`faults_after`), so that the status of the job can name the device. They have no effect on results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.ledger.states import CheckpointRow, KeyAhead, RejectedPartition, SenderFaults

TOLERANCE_MS = 1_000
"""A record that is ahead of its log time by no more than this is not reported: clocks differ."""
KEYS_MAX = 5
"""Maximum number of keys that are ahead, by slice and partition, and in a checkpoint."""
PARTITIONS_MAX = 5
"""Maximum number of partitions in a checkpoint whose records are all rejected."""
FORGOTTEN_AFTER_MS = 600_000
"""A key is reported until log time is this much later than the last record of the key that was ahead."""
_SAMPLE_RECORDS = 20
"""Maximum number of records whose senders are looked up one by one."""
_SENDER_CHARS_MAX = 100

Times = npt.NDArray[np.int64]


class PartitionFacts(msgspec.Struct):
    """Counts of one partition's records in a slice, with the senders and keys that caused faults."""

    records: int = 0
    rejected: dict[str, int] = {}
    """Reason -> records."""
    senders: dict[str, tuple[int, str]] = {}
    """Reason -> offset and sender of the last of these records. The sender is empty if it isn't known."""
    keys_ahead: dict[str, tuple[int, int]] = {}
    """Key -> how far a record was ahead of its log time in ms, at most, and the log time of this record in ms."""

    def add(self, part: PartitionFacts) -> None:
        """Add the counts of other records of the same partition and slice. The order of calls changes nothing."""
        self.records += part.records
        for reason, count in part.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + count
        for reason, last in part.senders.items():
            self.senders[reason] = max(last, self.senders.get(reason, last))
        for key, furthest in part.keys_ahead.items():
            self.keys_ahead[key] = max(furthest, self.keys_ahead.get(key, furthest))
        self.keys_ahead = _furthest(self.keys_ahead)


def sender_of(*candidates: bytes | None) -> str | None:
    """Return the first candidate that isn't empty, as text of bounded length. None if all are."""
    found = next((one for one in candidates if one), None)
    return None if found is None else _short(found.decode("utf-8", "backslashreplace"))


def keys_ahead(
    ahead_ms: Times, log_ms: Times, keys: pa.Array | None, sender_at: Callable[[int], str | None]
) -> dict[str, tuple[int, int]]:
    """Return the keys of the records that are ahead the furthest, as `PartitionFacts.keys_ahead`. Empty if none is ahead by more
    than TOLERANCE_MS.

    Args: ahead_ms: event time minus log time of each record. keys: the key of each record; None if the pipeline doesn't read the
    field. Then the senders of the records that are ahead the furthest are looked up by `sender_at`.
    """
    rows = np.flatnonzero(ahead_ms > TOLERANCE_MS)
    if not len(rows):
        return {}
    found: dict[str, tuple[int, int]] = {}
    if keys is None:
        for row in rows[np.argsort(-ahead_ms[rows], kind="stable")][:_SAMPLE_RECORDS].tolist():
            if (sender := sender_at(row)) is not None:
                found[sender] = max(found.get(sender, (0, 0)), (int(ahead_ms[row]), int(log_ms[row])))
        return _furthest(found)
    table = pa.table({"key": keys.take(pa.array(rows)), "ahead": ahead_ms[rows], "log": log_ms[rows]})
    order = [("ahead", "descending"), ("log", "descending"), ("key", "ascending")]
    by_key = table.sort_by(order).group_by("key", use_threads=False).aggregate([("ahead", "first"), ("log", "first")])
    for one in by_key.slice(0, KEYS_MAX + 1).to_pylist():
        if one["key"] is not None:
            found[_short(str(one["key"]))] = one["ahead_first"], one["log_first"]
    return _furthest(found)


def faults_after(
    before: CheckpointRow | None,
    number: int,
    found: Mapping[str, Mapping[int, PartitionFacts]],
    latest_log_ms: int | None,
) -> SenderFaults:
    """Return the sender faults for the checkpoint of slice `number`: those of the checkpoint `before`, updated by the slice.

    A partition's fault ends with an accepted record, and a key's fault after FORGOTTEN_AFTER_MS. If `before` is the checkpoint of
    this slice already, its faults are returned. Args: found: stream -> partition -> its records in the slice. latest_log_ms: the
    latest log time in all slices so far.
    """
    known = before.sender_faults if before is not None else SenderFaults()
    if before is not None and before.slice == number:
        return known
    ahead = {(one.stream, one.partition, one.key): one for one in known.keys_ahead}
    rejected = {(one.stream, one.partition): one for one in known.rejected_partitions}
    for stream, partitions in found.items():
        for partition, facts in partitions.items():
            for key, (ahead_ms, log_ms) in facts.keys_ahead.items():
                ahead[stream, partition, key] = KeyAhead(stream, partition, key, ahead_ms, log_ms)
            if sum(facts.rejected.values()) < facts.records:
                rejected.pop((stream, partition), None)
            elif facts.records:
                last = rejected.get((stream, partition), RejectedPartition(stream, partition, number, {}, {}))
                counts = {
                    reason: last.rejected.get(reason, 0) + facts.rejected.get(reason, 0)
                    for reason in sorted(last.rejected | facts.rejected)
                }
                senders = last.senders | {reason: sender for reason, (_, sender) in facts.senders.items() if sender}
                rejected[stream, partition] = RejectedPartition(stream, partition, last.slice_first, counts, senders)
    since_ms = (latest_log_ms or 0) - FORGOTTEN_AFTER_MS
    of_keys = sorted((one for one in ahead.values() if one.log_ms >= since_ms), key=_order_of_key)
    of_partitions = sorted(rejected.values(), key=lambda one: (-sum(one.rejected.values()), one.stream, one.partition))
    return SenderFaults(of_keys[:KEYS_MAX], of_partitions[:PARTITIONS_MAX])


def _order_of_key(one: KeyAhead) -> tuple[int, str, int, str]:
    return -one.ahead_ms, one.stream, one.partition, one.key


def _furthest(found: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    if len(found) <= KEYS_MAX:
        return found
    return dict(sorted(found.items(), key=lambda one: (-one[1][0], -one[1][1], one[0]))[:KEYS_MAX])


def _short(text: str) -> str:
    """Return the text with escapes for characters that can't be printed, and cut to a bounded length."""
    plain = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:_SENDER_CHARS_MAX]
    )
    return plain if len(text) <= _SENDER_CHARS_MAX else plain + "…"
