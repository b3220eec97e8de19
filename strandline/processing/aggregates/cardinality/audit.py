"""The count of distinct values again, as the authors of the sketch describe it: the values with which the audit compares results.

Shares the hash of values with the kernel, and nothing else: DuckDB sorts the registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pyarrow as pa

from strandline.processing.aggregates.contract import AuditQuery, AuditRows

_RANKS = 52
"""Number of ranks. 12 of the 63 bits of a hash select the register. The rank is one more than the number of zeros after the last
one bit of the other bits."""
_REGISTERS = 1 << 12


def registers_query(argument: str, rows: AuditRows) -> AuditQuery:
    """Return the query for the number of registers with each rank. If several rows have one register, the row with the
    maximum rank counts.
    """
    rest, register = f"({argument} >> 12)", f"({argument} & 4095)"
    rank, best = f"rank_of_{argument}", f"best_of_{argument}"
    zeros = f"CASE WHEN {rest} = 0 THEN {_RANKS} ELSE bit_count(({rest} & (-{rest})) - 1) + 1 END"
    own = f"PARTITION BY {rows.group}, {register}"
    return AuditQuery(
        (f"histogram({rank}) FILTER (WHERE {best} AND {argument} IS NOT NULL)",),
        (f"{zeros} AS {rank}", f"row_number() OVER ({own} ORDER BY {zeros} DESC NULLS LAST) = 1 AS {best}"),
    )


def distinct_of(histograms: pa.Array) -> pa.Array:
    """Return the estimated number of distinct values. `histograms`: number of registers with each rank, for each window."""
    return pa.array([_estimate(dict(one or ())) for one in histograms.to_pylist()], pa.int64())


def _estimate(counts: Mapping[int, int]) -> int:
    """Return the estimate of Ertl (arXiv:1702.01284, algorithm 6)."""
    empty = _REGISTERS - sum(counts.values())
    if empty == _REGISTERS:
        return 0
    total = _REGISTERS * _tau(1 - counts.get(_RANKS, 0) / _REGISTERS)
    for rank in range(_RANKS - 1, 0, -1):
        total = 0.5 * (total + counts.get(rank, 0))
    total += _REGISTERS * _sigma(empty / _REGISTERS)
    return round(_REGISTERS * (_REGISTERS / (2 * math.log(2))) / total)


def _sigma(x: float) -> float:
    total, factor, before = x, 1.0, -1.0
    while total != before:
        x, before = x * x, total
        total, factor = total + x * factor, factor * 2
    return total


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    total, factor, before = 1 - x, 1.0, -1.0
    while total != before:
        x, before, factor = math.sqrt(x), total, factor * 0.5
        total -= (1 - x) ** 2 * factor
    return total / 3
