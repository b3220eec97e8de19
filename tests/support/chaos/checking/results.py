"""The documents of the index, and the stream of results, held against what has to be there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from tests.support.chaos.checking.documents import Expected
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Record, Row


def check_documents(
    documents: list[Row], expected: dict[str, Expected], checkpoints: dict[int, Row], verdict: JobVerdict
) -> None:
    """Check the documents of one generation."""
    seen: Counter[str] = Counter()
    for document in documents:
        identity = document["_id"]
        seen[identity] += 1
        name = f"document {identity} of {document['_index']}"
        if seen[identity] > 1:
            verdict.repeated.append(f"{name} is in another index too")
        if document["_version"] != 1:
            verdict.repeated.append(f"{name} was written {document['_version']} times")
        one = expected.get(identity)
        if one is None:
            verdict.foreign.append(f"{name} is no result of a window that is closed: {document['_source']}")
            continue
        for problem in one.differences(document["_index"], document["_source"]):
            verdict.wrong.append(f"{name}: {problem}")
    for identity, one in expected.items():
        if identity not in seen and one.closer in checkpoints:
            verdict.lost.append(
                f"the result {one.stage} {one.result.by} up to {one.result.end_ms} is not in the index {one.index}; slice "
                f"{one.closer} closed its window"
            )


def check_stream(
    results: list[Record], documents: list[Row], stage: str, verdict: JobVerdict, restored: Sequence[Row] = ()
) -> None:
    """Compare the results of one stage in the stream with the documents of the index, which were compared with the log before.
    Both were written before any checkpoint.

    `restored`: the events `results_restored`. A document that was restored can have the number of a later slice than the record
    of the stream.
    """
    expected = {
        one["_id"]: one["_source"] for one in documents if one["_source"].get("strandline", {}).get("stage") == stage
    }
    seen: Counter[str] = Counter()
    for record in results:
        identity = record.headers.get("strandline-id", "")
        name = f"result {identity} at {record.partition}/{record.offset} of the stream"
        seen[identity] += 1
        if seen[identity] > 1:
            verdict.repeated.append(f"{name} is there before")
        if identity not in expected:
            verdict.foreign.append(f"{name} is no result of the index: {record.value!r}")
            continue
        held, wanted = json.loads(record.value), dict(expected[identity])
        times = {"start": held.pop("window_start", None), "end": held.pop("window_end", None)}
        # One run may have written the record, and a later run the document.
        emission = held.get("strandline", {}).get("emission", -1)
        is_restored = any(one["facts"]["slice_first"] <= emission <= one["facts"]["slice_last"] for one in restored)
        of_writer = {"epoch", "emission", "slice_digest"} if is_restored else {"epoch"}
        for one in (held, wanted):
            one["strandline"] = {
                name: value for name, value in one.get("strandline", {}).items() if name not in of_writer
            }
        if times != wanted["window"] or held.keys() != wanted.keys():
            verdict.wrong.append(f"{name} is {record.value!r}")
        elif different := [field for field in wanted if held[field] != wanted[field]]:
            verdict.wrong.append(f"{name} differs from the index in {different}")
    verdict.lost += [f"result {identity} is in the index and not in the stream" for identity in expected.keys() - seen]
