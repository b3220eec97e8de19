"""Whole pipelines of all kinds of steps against an oracle in plain Python; the same to the last bit in other slices and behind
restarts; and the same in Python and in SQL.

`python -m tests.property.test_whole_pipelines --pipelines 2000 --records 1000 --seed 1` runs as many as are wanted.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from strandline.core.documents import YamlDocument, read_documents
from strandline.core.errors import InvalidDocument, PermanentError
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.desk.desk import Desk, DeskLetter, DeskResult, Outcome
from strandline.processing.desk.desk_pipeline import pipeline_of
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model import PipelineSpec
from tests.support import oracle
from tests.support.examples import examples
from tests.support.oracle import Answer, Sent, answer, shown_value
from tests.support.some_pipelines import LOOKUP, SomePipeline, kinds_of_steps, some_log
from tests.unit.test_front_ends import of_python

REASONS = {"decode": "unreadable", "schema": "unreadable"}


def a_pipeline(random: Random) -> tuple[SomePipeline, CheckedPipeline]:
    """One that the check takes: it knows more than the generator."""
    while True:
        drawn = SomePipeline(random)
        try:
            return drawn, checked(drawn, drawn.document())
        except InvalidDocument:
            continue


def checked(drawn: SomePipeline, document: dict[str, Any]) -> CheckedPipeline:
    documents = [YamlDocument("stream", one["stream"], one) for one in drawn.stream_documents()]
    documents += [YamlDocument("lookup", "sites", LOOKUP), YamlDocument("pipeline", "whole", document)]
    return pipeline_of(documents, "whole.yaml")


def at_the_desk(
    pipeline: CheckedPipeline, streams: Sequence[str], log: Sequence[Sent], slice_records: int | None, restarts: int = 0
) -> list[Outcome]:
    """What comes of the log. `restarts`: one behind so many records, and so on."""
    desk = Desk(pipeline, slice_records, restarts=bool(restarts))
    found: list[Outcome] = []
    piece = restarts or 97
    for first in range(0, len(log), piece):
        for stream, part in groupby(log[first : first + piece], key=lambda one: one.stream):
            sent = list(part)
            records = DeskRecords([one.line for one in sent], [one.partition for one in sent], stream=streams[stream])
            found += desk.feed(records)
        if restarts:
            desk.restart()
    return [*found, *desk.drain()]


def bits(found: Sequence[Outcome]) -> list[str]:
    """All that came, but for the number of the slice that closed a window."""
    return sorted(re.sub(r'"emission":\d+', "", str(one)) for one in found)


def of_desk(found: Sequence[Outcome], streams: Sequence[str]) -> Answer:
    """What came, as the oracle says it."""
    shown = Answer()
    for one in found:
        if isinstance(one, DeskResult):
            document = json.loads(one.document.source)
            origin = document.pop("strandline")
            fields = {name: shown_value(value) for name, value in document.items()}
            if "window" in document:
                fields["window"] = f"{document['window']['start']} {document['window']['end']}"
            else:
                fields["@place"] = f"{origin['stream']}/{origin['partition']}/{origin['offset']}"
            shown.documents[str(sorted({**fields, "@stage": one.stage}.items()))] += 1
        elif isinstance(one, DeskLetter) and "offset" in one.place:
            place = (streams.index(str(one.place["stream"])), int(one.place["partition"]), int(one.place["offset"]))
            assert place not in shown.letters, "a record has one dead letter"
            shown.letters[place] = REASONS.get(one.reason, one.reason)
    return shown


@dataclass(frozen=True)
class Run:
    """A pipeline, what it gives at the desk, and what the oracle says."""

    random: Random
    drawn: SomePipeline
    pipeline: CheckedPipeline
    log: list[Sent]
    at_once: list[Outcome]
    found: Answer
    wanted: Answer


def a_run(seed: int, records: int) -> Run:
    random = Random(seed)
    drawn, pipeline = a_pipeline(random)
    log = some_log(random, drawn, records)
    at_once = at_the_desk(pipeline, drawn.streams, log, None)
    wanted = answer(drawn.steps, log, drawn.times, drawn.streams)
    return Run(random, drawn, pipeline, log, at_once, of_desk(at_once, drawn.streams), wanted)


def differences(seed: int, records: int, *, whole: bool = True) -> Iterator[str]:
    """What is different from the oracle, and from run to run. `whole`: also what comes of its SQL."""
    run = a_run(seed, records)
    random, drawn, pipeline, log, at_once = run.random, run.drawn, run.pipeline, run.log, run.at_once
    found, wanted = run.found, run.wanted
    for what, more in (
        ("missing", wanted.documents - found.documents),
        ("too much", found.documents - wanted.documents),
    ):
        yield from (f"{what}: {one}" for one in sorted(more)[:3])
    if wanted.letters != found.letters:
        yield f"dead letters: {sorted(wanted.letters.items() ^ found.letters.items())[:5]}"
    sizes = (1, 7, 40, 23) if records < 100 else (30, 100, 150, 400)
    cuts = [(random.choice(sizes[:2]), 0), (random.choice([None, sizes[2]]), sizes[3])]
    for slice_records, restarts in cuts:
        if bits(at_the_desk(pipeline, drawn.streams, log, slice_records, restarts)) != bits(at_once):
            yield f"other bits in slices of {slice_records}, with restarts behind {restarts}"
    document = drawn.document()
    if of_python(as_python([document])) != [PipelineSpec.from_document(document).as_document()]:
        yield "Python says another document"
    try:
        sql = as_sql([document])
    except PermanentError:
        return
    (again,) = read_documents(translate(sql, "x.sql").yaml, "x.sql")
    if _without_names(again.data) != _without_names(document):
        yield f"SQL says other steps: {sql}"
    if whole:
        other = of_desk(at_the_desk(checked(drawn, again.data), drawn.streams, log, None), drawn.streams)
        # Where steps of several branches fail for one record, its reason is of the first in the document, and SQL may say the
        # branches in another order.
        if (other.documents, other.letters.keys()) != (found.documents, found.letters.keys()):
            yield f"SQL gives other results: {sql}"


def _without_names(document: dict[str, Any]) -> tuple[dict[str, object], list[str]]:
    """The canonical document but for what SQL may say otherwise: the order of branches, the names in them, and whether an
    emission stands beside its window or right behind it."""
    found = PipelineSpec.from_document(document).as_document()
    steps: list[dict[str, Any]] = []
    stages: dict[str, dict[str, Any]] = {}
    for step in found.pop("steps"):  # type: ignore[attr-defined]
        taken = stages.get(step.pop("from")) if isinstance(step.get("from"), str) else steps[-1] if steps else None
        if step.keys() == {"emit"} and taken is not None and {"window", "join"} & taken.keys() and "emit" not in taken:
            taken["emit"] = step["emit"]
            continue
        step.pop("from", None)
        if "emit" not in step:
            step.pop("name", None)
        if "join" in step:
            step["join"] |= {"left": "", "right": ""}
        steps.append(step)
        stages |= {stage["name"]: step for stage in (step.get("window"), step.get("join")) if stage is not None}
    return found, sorted(json.dumps(step, sort_keys=True) for step in steps)


@examples(16, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_a_pipeline_gives_what_the_oracle_says(seed: int) -> None:
    assert list(differences(seed, 90, whole=False)) == []


def test_pipelines_of_all_kinds_are_drawn() -> None:
    kinds = kinds_of_steps([SomePipeline(Random(seed)).document() for seed in range(1_000)])
    assert min(kinds.values()) >= 10 and len(kinds) == 17, kinds


@pytest.mark.parametrize("mistake", ["late", "session", "repeat", "join"])
def test_mistakes_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: an oracle that means something else differs."""
    if mistake == "late":
        monkeypatch.setattr(oracle, "late_ones", lambda log, times: set())
    elif mistake == "session":
        original = oracle.sessions
        monkeypatch.setattr(oracle, "sessions", lambda rows, by, gap, longest: original(rows, by, gap + 1, longest))
    elif mistake == "repeat":
        monkeypatch.setattr(oracle, "_log_order", lambda row: (row.place[0], -row.place[2]) if row.place else ())
    else:
        monkeypatch.setattr(oracle, "joined", lambda on, near, kind, add: lambda lefts, rights, fail: iter(()))
    runs = (a_run(seed, 60) for seed in range(30))
    assert any(run.found != run.wanted for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=2_000)
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began, found = time.monotonic(), Counter[str]()
    for number in range(1, arguments.pipelines + 1):
        seed = arguments.seed * 1_000_000 + number
        try:
            here = list(differences(seed, arguments.records))
        except Exception as error:  # noqa: BLE001  # a finding like others
            here = [f"{type(error).__name__}: {error}"]
        found["pipelines with differences"] += bool(here)
        for one in here:
            print(f"seed {seed}: {one[:600]}", flush=True)
        if number % 10 == 0 or number == arguments.pipelines:
            pace = (time.monotonic() - began) / number
            print(f"{number} pipelines, {found.total()} with differences, {pace:.2f} s each", flush=True)
    raise SystemExit(1 if found.total() else 0)


if __name__ == "__main__":
    main()
