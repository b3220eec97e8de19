"""Whole pipelines of all kinds of steps against an oracle in plain Python.

The results are the same in other slices and after restarts, and the same in Python and in SQL.

`python -m tests.property.test_whole_pipelines --pipelines 2000 --records 1000 --seed 1` runs as many as needed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from ast import literal_eval
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from strandline.core.documents import YamlDocument, read_documents
from strandline.core.errors import InvalidDocument, PermanentError
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import pack_rows
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.ledger.states import LookupRow
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.desk_pipeline import pipeline_of
from strandline.processing.desk.records import DeskRecords
from strandline.processing.formats.lookups.documents import read_lookup
from strandline.processing.formats.lookups.rows import canonical_text, digest_of, kept_table, keyed_rows
from strandline.processing.operators.lookups.lookup_table import LookupTable
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.functions.installed import package_of
from strandline.processing.pipelines.kind_registry import WINDOW_KEYWORDS
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.followed.stream_rows import LoggedRecords, StreamRows
from tests.support import oracle
from tests.support.examples import examples
from tests.support.installed_package import install
from tests.support.oracle import Answer, Applied, Followed, Log, Sent, Step, answer, late_ones, shown_value
from tests.support.some_lookups import FIRST, LOOKUPS, REGISTRY, first_versions
from tests.support.some_pipelines import FUNCTIONS, SomePipeline, kinds_of_steps, some_log
from tests.unit.test_front_ends import of_python

ALLOW = "STRANDLINE_ALLOW_FUNCTIONS"
REASONS = {"decode": "unreadable", "schema": "unreadable"}


@pytest.fixture(autouse=True, scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package whose functions pipelines call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOW, "acme_quality")
        patch.syspath_prepend(install(tmp_path_factory.mktemp("functions"), functions=FUNCTIONS))
        package_of.cache_clear()
        yield
    package_of.cache_clear()
    sys.modules.pop("acme_quality", None)


def a_pipeline(random: Random) -> tuple[SomePipeline, CheckedPipeline]:
    """One that the check takes: it knows more than the generator."""
    while True:
        drawn = SomePipeline(random)
        try:
            return drawn, checked(drawn, drawn.document())
        except InvalidDocument:
            continue


def checked(drawn: SomePipeline, document: dict[str, Any]) -> CheckedPipeline:
    documents = [YamlDocument("stream", one["stream"], one) for one in [*drawn.stream_documents(), REGISTRY]]
    documents += [_lookup_document(name) for name in LOOKUPS]
    documents += [YamlDocument("pipeline", "whole", document)]
    pipeline = pipeline_of(documents, "whole.yaml")
    followed = [name for name, _ in pipeline.lookups if LOOKUPS[name].is_followed]
    return replace(pipeline, tables={**pipeline.tables, **{name: FollowedRows(name).table for name in followed}})


def at_the_desk(
    pipeline: CheckedPipeline, streams: Sequence[str], log: Log, slice_records: int | None, restarts: int = 0
) -> list[Outcome]:
    """Return the outcomes of the log at the desk.

    `restarts`: one restart after this number of records, and so on.
    """
    desk = Desk(pipeline, slice_records, restarts=bool(restarts))
    followed = {name: FollowedRows(name) for name, one in LOOKUPS.items() if one.is_followed}
    found: list[Outcome] = []
    piece = restarts or 97
    for first in range(0, len(log), piece):
        for stream, part in groupby(log[first : first + piece], key=lambda one: getattr(one, "stream", None)):
            if stream is None:
                for change in cast("Iterator[Applied | Followed]", part):
                    table = followed[change.lookup].read(change) if isinstance(change, Followed) else table_of(change)
                    desk.change_lookups({change.lookup: table} if change.lookup in pipeline.tables else {})
                continue
            sent = list(cast("Iterator[Sent]", part))
            records = DeskRecords([one.line for one in sent], [one.partition for one in sent], stream=streams[stream])
            found += desk.feed(records)
        if restarts:
            desk.restart()
    return [*found, *desk.drain()]


def _lookup_document(name: str) -> YamlDocument:
    document = LOOKUPS[name].document
    return YamlDocument("lookup", name, document if LOOKUPS[name].is_followed else {**document, "rows": [*FIRST[name]]})


def table_of(applied: Applied) -> LookupTable:
    """Return the table that a worker reads from the ledger for this version."""
    document = LOOKUPS[applied.lookup].document
    schema = {name: document["schema"][name] for name in applied.fields}
    read = read_lookup(YamlDocument("lookup", applied.lookup, {**document, "schema": schema, "rows": [*applied.rows]}))
    return _kept(read.spec, read.text)


def _kept(spec: LookupSpec, text: bytes) -> LookupTable:
    row = LookupRow(spec.lookup, 1, digest_of(spec, text), spec.without_rows(), text.count(b"\n"), 0)
    return kept_table(row, pack_rows(text))


class FollowedRows:
    """A lookup that follows a stream, as a control service reads it."""

    def __init__(self, name: str) -> None:
        self._spec = LookupSpec.from_document(LOOKUPS[name].document)
        self._stream = StreamSpec.from_document(REGISTRY)
        self._ends: Counter[int] = Counter()
        self.table = _kept(self._spec, b"")

    def read(self, followed: Followed) -> LookupTable:
        """The version behind these records: they are read partition by partition."""
        rows, reader = keyed_rows(self._spec, self.table.rows), StreamRows(self._spec, self._stream)
        for partition in range(REGISTRY["partitions"]):
            here = [one for one in followed.records if one.partition == partition]
            offsets = range(self._ends[partition], self._ends[partition] + len(here))
            values, keys = [one.value for one in here], [one.key for one in here]
            reader.take_in(rows, LoggedRecords(partition, offsets, values, keys, [None] * len(here)))
            self._ends[partition] += len(here)
        assert reader.skipped == sum(one.changes is None for one in followed.records), reader.skipped_last
        self.table = _kept(self._spec, canonical_text(rows))
        return self.table


def last_ones(found: Sequence[Outcome]) -> list[Outcome]:
    """Without the results that later ones revise."""
    revised = {
        one.document.id: number
        for number, one in enumerate(found)
        if isinstance(one, DeskResult) and one.document.version is not None
    }
    return [
        one
        for number, one in enumerate(found)
        if not isinstance(one, DeskResult) or revised.get(one.document.id, number) == number
    ]


def bits(found: Sequence[Outcome]) -> list[str]:
    """Return the last outcomes without the number of the slice that closed a window."""
    return sorted(re.sub(r'"emission":\d+', "", str(one)) for one in last_ones(found))


def of_desk(found: Sequence[Outcome], streams: Sequence[str]) -> Answer:
    """Return the outcomes of the desk in the form of the oracle."""
    shown = Answer()
    for one in last_ones(found):
        if isinstance(one, DeskResult):
            document = json.loads(one.document.source)
            origin = document.pop("strandline")
            fields = {name: shown_value(value) for name, value in document.items()}
            if "window" in document:
                fields["window"] = f"{document['window']['start']} {document['window']['end']}"
            else:
                fields["@place"] = f"{origin['stream']}/{origin['partition']}/{origin['offset']}"
            shown.documents[str(sorted({**fields, "@stage": one.stage}.items()))] += 1
        elif isinstance(one, LocalDeadLetter) and "offset" in one.place:
            place = (streams.index(str(one.place["stream"])), int(one.place["partition"]), int(one.place["offset"]))
            assert place not in shown.letters, "a record has one dead letter"
            shown.letters[place] = REASONS.get(one.reason, one.reason)
            if one.reason == "lookup":
                shown.letters[place] = re.sub(
                    r".*: lookup (\w+ has no row) for .* (\(version \d+\))", r"\1 \2", one.message
                )
    return shown


@dataclass(frozen=True)
class Run:
    """A pipeline, its outcomes at the desk, and those of the oracle."""

    random: Random
    drawn: SomePipeline
    pipeline: CheckedPipeline
    log: Log
    at_once: list[Outcome]
    found: Answer
    wanted: Answer

    @property
    def records(self) -> int:
        return sum(isinstance(one, Sent) for one in self.log)


def a_run(seed: int, records: int) -> Run:
    random = Random(seed)
    drawn, pipeline = a_pipeline(random)
    return run_of(random, drawn, pipeline, some_log(random, drawn, records))


def run_of(random: Random, drawn: SomePipeline, pipeline: CheckedPipeline, log: Log) -> Run:
    at_once = at_the_desk(pipeline, drawn.streams, log, None)
    revise_ms = (drawn.revise_s or 0) * 1000
    wanted = answer(drawn.steps, log, drawn.times, drawn.streams, revise_ms, first_versions())
    return Run(random, drawn, pipeline, log, at_once, of_desk(at_once, drawn.streams), wanted)


def differences(seed: int, records: int, *, whole: bool = True) -> Iterator[str]:
    """Yield the differences from the oracle and between runs. `whole`: also check the pipeline in SQL."""
    return differences_of(a_run(seed, records), whole=whole)


def differences_of(run: Run, *, whole: bool = True) -> Iterator[str]:
    random, drawn, pipeline, log, at_once = run.random, run.drawn, run.pipeline, run.log, run.at_once
    found, wanted = run.found, run.wanted
    missing, extra = apart(wanted.documents - found.documents, found.documents - wanted.documents)
    for what, more in (("missing", missing), ("too much", extra)):
        yield from (f"{what}: {one}" for one in sorted(more)[:3])
    if wanted.letters != found.letters:
        yield f"dead letters: {sorted(wanted.letters.items() ^ found.letters.items())[:5]}"
    sizes = (1, 7, 40, 23) if run.records < 300 else (30, 100, 150, 400)
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


def apart(missing: Counter[str], extra: Counter[str]) -> tuple[Counter[str], Counter[str]]:
    """Return both without the pairs that differ only in the last digits of doubles.

    If a double is between two numbers of 12 digits, a difference in its last bit changes its 12 digits.
    """
    left = list(extra.elements())
    far = []
    for one in missing.elements():
        near = next((other for other in left if is_near(literal_eval(one), literal_eval(other))), None)
        far += [one] if near is None else []
        left = left if near is None else [*left[: left.index(near)], *left[left.index(near) + 1 :]]
    return Counter(far), Counter(left)


def is_near(ours: Any, theirs: Any) -> bool:
    """Return whether two values, as they are shown, are equal except for the last digits of doubles."""
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(is_near, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(is_near(value, theirs[name]) for name, value in ours.items())
    if ours == theirs or not (isinstance(ours, str) and isinstance(theirs, str)):
        return bool(ours == theirs)
    try:
        return math.isclose(float(ours), float(theirs), rel_tol=2e-11)
    except ValueError:
        return False


def _without_names(document: dict[str, Any]) -> tuple[dict[str, object], list[str]]:
    """Return the canonical document without what SQL can write differently.

    That is the order of branches, the names in them, and whether an emission is in a branch or directly after its
    window.
    """
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


@pytest.mark.guarantee(
    "G542",
    "A pipeline of any combination of steps equals an oracle in plain Python, over records with disorder, duplicates, "
    "and errors. Its results are the same to the last bit in other slices and after restarts, and in Python or SQL "
    "form.",
    promise="each-result-exists-once-with-the-right-value",
)
@pytest.mark.guarantee("G643")
@examples(16, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_a_pipeline_gives_what_the_oracle_says(seed: int) -> None:
    assert list(differences(seed, 90, whole=False)) == []


def test_a_pipeline_without_windows_has_no_late_records() -> None:
    """The drawn pipeline only derives and emits, from records with disorder."""
    run = a_run(51_000_058, 120)
    assert not run.pipeline.stages
    assert late_ones([one for one in run.log if isinstance(one, Sent)], run.drawn.times, 0)
    assert "late" not in run.found.letters.values()
    assert list(differences_of(run, whole=False)) == []


def test_only_the_last_digits_of_doubles_may_differ() -> None:
    one, near, far = (
        f"[('n', 21), ('noise', '{value}')]" for value in ("-3.62010392539", "-3.6201039254", "-3.6201039")
    )
    assert apart(Counter([one, one]), Counter([near, one, far])) == (Counter(), Counter([far]))
    assert apart(Counter([one]), Counter([far])) == (Counter([one]), Counter([far]))
    assert apart(Counter([one]), Counter([one.replace("21", "22")]))[0] == Counter([one])


def test_pipelines_of_all_kinds_are_drawn() -> None:
    kinds = kinds_of_steps([SomePipeline(Random(seed)) for seed in range(1_000)])
    assert min(kinds.values()) >= 10 and len(kinds) == 25, kinds
    assert {*WINDOW_KEYWORDS} <= {*kinds}


def shows(mistake: str, seed: int) -> bool:
    """Return whether the first drawn pipeline can show the mistake. This is cheap compared with a run."""
    kinds = {
        "count": ["count"],
        "previous": ["previous"],
        "latest": ["latest join"],
        "days": ["days"],
        "session": ["session"],
        "repeat": ["dedupe"],
        "revised": ["revised"],
        "map": ["map"],
        "newest": ["changing lookup"],
        "deleted": ["followed lookup"],
    }
    drawn = kinds_of_steps([SomePipeline(Random(seed))])
    return mistake not in kinds or any(drawn[kind] for kind in kinds[mistake])


@pytest.mark.guarantee("G542")
@pytest.mark.parametrize(
    "mistake",
    ["late", "revised", "session", "repeat", "join", "count", "previous", "latest", "days", "map", "newest", "deleted"],
)
def test_mistakes_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: an oracle that means something else differs."""
    if mistake == "late":
        monkeypatch.setattr(oracle, "late_ones", lambda log, times, revise_ms: {})
    elif mistake == "revised":
        exact = oracle.late_ones
        monkeypatch.setattr(oracle, "late_ones", lambda log, times, revise_ms: exact(log, times, revise_ms + 1_000))
    elif mistake == "newest":
        in_force = oracle.in_force
        monkeypatch.setattr(oracle, "in_force", lambda log, first: [in_force(log, first)[-1]] * len(log))
    elif mistake == "deleted":
        latest = oracle.latest_rows
        monkeypatch.setattr(
            oracle, "latest_rows", lambda before, told: latest(before, [one for one in told if one.row is not None])
        )
    elif mistake == "map":
        monkeypatch.setattr(oracle, "mapped", lambda reads, of: lambda rows, fail: iter(()))
    elif mistake == "session":
        original = oracle.sessions
        monkeypatch.setattr(oracle, "sessions", lambda rows, by, gap, longest: original(rows, by, gap + 1, longest))
    elif mistake == "repeat":
        monkeypatch.setattr(oracle, "_log_order", lambda row: (row.place[0], -row.place[2]) if row.place else ())
    elif mistake == "count":
        exactly = oracle.counted
        monkeypatch.setattr(oracle, "counted", lambda rows, by, size, longest: exactly(rows, by, size + 1, longest))
    elif mistake == "previous":
        pairs = oracle.with_previous
        monkeypatch.setattr(oracle, "with_previous", lambda rows, by, within: pairs(rows, by, 60_001 - within))
    elif mistake == "days":
        days = oracle.day_of
        monkeypatch.setattr(oracle, "day_of", lambda at, _zone, *more: days(at, ZoneInfo("UTC"), *more))
    elif mistake == "latest":
        joined = oracle.joined
        every = partial(_of_every_row, joined)
        monkeypatch.setattr(oracle, "joined", every)
    else:
        monkeypatch.setattr(oracle, "joined", lambda on, near, kind, add: lambda lefts, rights, fail: iter(()))
    runs = (a_run(seed, 60) for seed in range(60) if shows(mistake, seed))
    assert any(run.found != run.wanted for run in runs)


def smallest(run: Run) -> Run:
    """Return a smaller run that still shows the difference between desk and oracle.

    It has one emission with the steps before it, and the first records of the log. It is the run itself if no smaller
    one shows the difference.
    """
    for drawn in sorted(smaller(run.drawn), key=lambda one: len(one.steps)):
        try:
            found = run_of(run.random, drawn, checked(drawn, drawn.document()), run.log)
        except InvalidDocument:
            continue
        if found.found != found.wanted:
            run = found
            break
    fewer, step = len(run.log), len(run.log)
    while (step := step // 2) and step:
        found = run_of(run.random, run.drawn, run.pipeline, run.log[: max(fewer - step, 1)])
        if found.found != found.wanted:
            run, fewer = found, len(found.log)
    return run


def smaller(drawn: SomePipeline) -> Iterator[SomePipeline]:
    """One for each emission, with the steps that lead to it alone."""
    for last in (at for at, step in enumerate(drawn.steps) if step.emits is not None):
        needed, ahead = set[int](), [last]
        while ahead:
            if (at := ahead.pop()) >= 0 and at not in needed:
                needed.add(at)
                ahead += drawn.steps[at].takes
        places = {old: new for new, old in enumerate(sorted(needed))}
        one = copy(drawn)
        one.steps = [_alone(drawn, at, places, at == last) for at in sorted(needed)]
        yield one


def _alone(drawn: SomePipeline, at: int, places: dict[int, int], is_last: bool) -> Step:
    """Return a step with the inputs of the smaller pipeline, which emits only if it is the last."""
    step = drawn.steps[at]
    document = {name: said for name, said in step.document.items() if name != "emit" or is_last}
    if "join" not in document:
        names = [drawn.streams[-1 - one] if one < 0 else _name_of(drawn.steps[one].document) for one in step.takes]
        document["from"] = names if len(names) > 1 else names[0]
    takes = tuple(places.get(one, one) for one in step.takes)
    return replace(step, document=document, takes=takes, emits=step.emits if is_last else None)


def _name_of(document: dict[str, Any]) -> str:
    stage = document.get("window") or document.get("join") or document
    return str(stage["name"])


@dataclass(frozen=True)
class ClassifiedRecord:
    """Findings of one pipeline."""

    seed: int
    differences: list[str]
    shown: str
    """The smallest document that shows a difference from the oracle, where there is one."""
    amounts: Counter[str]
    kinds: frozenset[str]
    cpu_s: float


def judged(seed: int, records: int) -> ClassifiedRecord:
    began, amounts, kinds, shown = time.process_time(), Counter[str](), frozenset[str](), ""
    try:
        run = a_run(seed, records)
        document = run.drawn.document()
        kinds = frozenset(kind for kind, count in kinds_of_steps([run.drawn]).items() if count)
        reasons = Counter(run.wanted.letters.values())
        amounts = Counter(
            {
                "records": run.records,
                "results": run.wanted.documents.total(),
                "dead letters": reasons.total(),
                "late records": reasons["late"],
            }
        )
        here = list(differences_of(run))
        if here and run.found != run.wanted:
            small = smallest(run)
            shown = f"of {small.records} records: {json.dumps(small.drawn.document())}"
        elif here:
            shown = json.dumps(document)
    except Exception as error:  # noqa: BLE001  # a finding like others
        here = [f"{type(error).__name__}: {error}"]
    return ClassifiedRecord(seed, here, shown, amounts, kinds, time.process_time() - began)


def _of_every_row(joined: Any, on: Any, near: dict[str, Any], *more: Any) -> Any:
    """A join with the latest row, taken for one with every row."""
    return joined(on, {**near, "latest": False}, *more)


def allow(directory: str) -> None:
    """Let this process call the functions of the package there."""
    os.environ[ALLOW] = "acme_quality"
    sys.path.insert(0, directory)


def main() -> None:
    """Exits with 1 if there is a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=2_000)
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    began, cpu_s = time.monotonic(), 0.0
    amounts, kinds = Counter[str](), Counter[str]()
    seeds = range(arguments.seed * 1_000_000 + 1, arguments.seed * 1_000_000 + 1 + arguments.pipelines)
    with TemporaryDirectory() as directory, get_context("spawn").Pool(arguments.processes, allow, [directory]) as pool:
        install(Path(directory), functions=FUNCTIONS)
        answers = pool.imap_unordered(partial(judged, records=arguments.records), seeds)
        for number, one in enumerate(answers, 1):
            amounts += one.amounts + Counter({"pipelines": 1, "with differences": bool(one.differences)})
            kinds.update(one.kinds)
            cpu_s += one.cpu_s
            for said in one.differences:
                print(f"seed {one.seed}: {said[:600]}", flush=True)
            if one.differences:
                print(f"seed {one.seed}: {one.shown}", flush=True)
            if number % 10 == 0 or number == arguments.pipelines:
                pace = f"{(time.monotonic() - began) / number:.2f} s each, {cpu_s / number:.2f} s of CPU"
                print(f"{number} pipelines, {amounts['with differences']} with differences, {pace}", flush=True)
    names = ("pipelines", "records", "results", "dead letters", "late records", "with differences")
    print(", ".join(f"{amounts[name]:,} {name}" for name in names))
    print("pipelines with: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    raise SystemExit(1 if amounts["with differences"] else 0)


if __name__ == "__main__":
    main()
