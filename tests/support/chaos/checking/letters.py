"""The dead letters: of records that are refused, and of results that a step before the next window has no value for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.support.chaos.checking.documents import Expected
from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Record, Row


def check_dead_letters(
    letters: list[Record],
    judged: list[ClassifiedRecord],
    expected: Iterable[Expected],
    stream: str,
    checkpoints: dict[int, Row],
    verdict: JobVerdict,
) -> None:
    """Check that each refused record, and each unusable result of a closed window, has exactly one dead letter.

    A result that a backfill computes is separate. The dead letters of an uncommitted slice may exist or not.
    """
    records = {one.identity(stream): one for one in judged if one.reason}
    results = {one.place: one for one in expected if one.result.failed_in}
    verdict.unusable = sum(one.closer in checkpoints for one in results.values())
    seen: Counter[str] = Counter()
    for letter in letters:
        key = (letter.key or b"").decode(errors="replace")
        seen[key] += 1
        name = f"dead letter {letter.offset} for {key}"
        if key not in records and key not in results:
            verdict.foreign.append(f"{name} is for nothing that is refused or can't be used")
            continue
        if seen[key] > 1:
            verdict.repeated.append(f"{name}: there is another")
        if key in results:
            verdict.wrong += [f"{name}: {problem}" for problem in _differences(letter, results[key])]
            continue
        one = records[key]
        coordinates = "/".join(
            letter.headers[name] for name in ("stream", "partition", "offset", "element") if name in letter.headers
        )
        said = letter.headers.get("reason"), letter.headers.get("taken-by")
        is_right = letter.value == one.record.value if one.is_letter is None else one.is_letter(letter.value)
        if not is_right or said != (one.reason, one.taken_by) or coordinates != key:
            verdict.wrong.append(f"{name} ({one.reason}) says {letter.headers} of {_shown(letter.value)}")
    for key in records.keys() - seen.keys():
        if records[key].slice in checkpoints:
            size = len(records[key].record.value)
            verdict.lost.append(
                f"record {key} of {size} bytes is refused ({records[key].reason}) and has no dead letter"
            )
    for key in results.keys() - seen.keys():
        if results[key].closer in checkpoints:
            verdict.lost.append(f"the result {key} fails in {results[key].result.failed_in} and has no dead letter")


def _differences(letter: Record, expected: Expected) -> Iterator[str]:
    headers = {"reason": "expression", "step": expected.result.failed_in, "document": expected.id}
    if {name: letter.headers.get(name) for name in headers} != headers:
        yield f"says {letter.headers}, expected {headers}"
    try:
        source = json.loads(letter.value)
    except ValueError:
        yield f"holds {_shown(letter.value)}, which is no document"
        return
    yield from expected.differences(letter.headers.get("index", ""), source)


def _shown(value: bytes) -> str:
    return f"{value[:200]!r} ({len(value)} bytes)"
