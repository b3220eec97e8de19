"""Enriched records agree with a few lines of plain Python.

The rows change between slices, and slices are replayed in other batches. The values of a record follow from the version
of its slice, to the last bit, for any reader and any other records in the batch.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.lookups.packed_rows import pack_rows
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, SliceRow
from strandline.log.range_reader import FetchedRecords
from strandline.processing.audit.recomputation import RecordsPart
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.stage_query import query_of
from strandline.processing.audit_queries.table import Table
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.formats.lookups.documents import read_lookup
from strandline.processing.operators.blobs import unpack
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.lookups.lookup_table import LookupTable
from strandline.processing.operators.record_rows import unpack_record_rows
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.lookups.lookup_shapes import shape_of
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source import decoding
from strandline.processing.source.decoding import task_config
from strandline.processing.source.recorded_slices import cut_tasks
from strandline.processing.source.run_slices import spread_pieces
from strandline.processing.source.slice_rows import FACTS, RECORD_ROWS, RECORDS, REJECTED, decode_facts
from strandline.processing.source.source_task import SourceTask
from strandline.processing.source.stream_formats import StreamFormats
from tests.support.ledgers import a_slice

SEEDS = int(os.environ.get("STRANDLINE_LOOKUP_SEEDS", "10"))
STREAM = StreamSpec.from_document(
    {
        "stream": "s",
        "schema": {
            "ts": "timestamp",
            "site": "string?",
            "unit": "integer?",
            "price": "decimal(6,2)?",
            "power": "double",
        },
    }
)
KEYS = {"site": "string", "unit": "long", "price": "decimal(6,2)"}
"""The columns that may be a key, with their types in the lookup."""


def value_of(dice: random.Random, name: str) -> Any:
    """Few enough that most are found; some are null in records."""
    number = dice.randrange(40)
    return {"site": f"s{number % 13}ü", "unit": number % 7 - 3, "price": f"{number % 5}.50"}[name]


def lookup_of(dice: random.Random, key: list[str], rows_max: int) -> dict[str, Any]:
    found = {}
    for _ in range(dice.randrange(rows_max)):
        row = {name: value_of(dice, name) for name in key}
        found[json.dumps(row)] = row | {"rated": dice.random() * 1e3, "note": dice.choice([None, "x", "y"])}
    # Rows that no record needs, so that there are more rows than records in one call.
    extra = dice.choice([0, 0, 3_000])
    for number in range(extra):
        row = {"site": f"other{number}", "unit": 1_000 + number, "price": f"{10 + number % 90}.{number % 100:02}"}
        row = {name: row[name] for name in key}
        found.setdefault(json.dumps(row), row | {"rated": 1.0, "note": None})
    fields = {name: KEYS[name] for name in key} | {"rated": "double", "note": "string?"}
    rows = list(found.values())
    dice.shuffle(rows)
    return {"lookup": "sites", "schema": fields, "key": key, "rows": rows}


class Reader:
    """A log in memory: partition -> records."""

    def __init__(self, log: dict[int, list[bytes]]) -> None:
        self.log = log

    def read(self, ranges: Any, headers: Any, headers_beside: Any = ()) -> Iterator[FetchedRecords]:
        for one in ranges:
            offsets = list(range(one.offset_first, one.offset_next))
            yield FetchedRecords(
                one, offsets, [10**12] * len(offsets), [self.log[one.partition][at] for at in offsets], []
            )


class World:
    """One job over one log, with the slices that it was cut into and the lookup's versions."""

    def __init__(self, seed: int, ledger: Ledger, ledger_url: str) -> None:
        self.dice = dice = random.Random(seed)
        self.ledger = ledger
        ledger.put_stream("s", STREAM.as_document())
        self.key = dice.choice([["site"], ["unit"], ["price"], ["site", "unit"], ["unit", "price", "site"]])
        self.optional = dice.random() < 0.5
        self.versions: dict[int, dict[str, Any]] = {}
        for _ in range(dice.randrange(1, 5)):
            self.apply(lookup_of(dice, self.key, 60))
        self.log = {partition: [self.record() for _ in range(dice.randrange(0, 400))] for partition in range(3)}
        self.slices = list(self.cut())
        document: dict[str, Any] = {
            "pipeline": "j",
            "input": {"stream": "s"},
            "event_time": {"field": "ts", "delay": "1h", "max_ahead": None, "idle_timeout": None},
            "steps": [
                {"where": "power >= 0"},
                {"enrich": {"lookup": "sites", "key": self.key, "add": ["rated", "note"], "optional": self.optional}},
                {"emit": [{"stream": "out"}], "name": "records"},
                {"derive": {"load": "power * coalesce(rated, 0.1)"}},
                {
                    "window": {
                        "name": "w",
                        "tumbling": "10s",
                        "by": ["note"],
                        "aggregate": {"n": "count(*)", "load": "sum(load)"},
                    },
                    "emit": [{"elasticsearch": "w"}],
                },
            ],
        }
        newest = read_lookup_of(self.versions[max(self.versions)])
        self.pipeline = check(
            PipelineSpec.from_document(document), STREAM, lookups={"sites": shape_of(newest.spec, self.base)}
        )
        self.config = task_config(self.pipeline, "nowhere", (0,), ledger_url=ledger_url)

    def apply(self, document: dict[str, Any]) -> None:
        read = read_lookup_of(document)
        row = self.ledger.put_lookup(
            "sites", read.spec.without_rows(), read.digest, pack_rows(read.text), read.rows.num_rows
        )
        self.versions[row.version] = document
        if row.version == 1:  # a job that needs all of them
            self.base = 1
            self.ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"sites": 1})

    def record(self) -> bytes:
        dice = self.dice
        made = {"ts": 1_700_000_000_000 + dice.randrange(60_000), "power": dice.random() * 100 - 10}
        made |= {name: value_of(dice, name) for name in KEYS if dice.random() > 0.1}
        return json.dumps(made).encode() if dice.random() > 0.03 else b"{broken"

    def cut(self) -> Iterator[SliceRow]:
        """Slices of random sizes; the first of them may say no version."""
        dice, version = self.dice, 0
        ends = {
            partition: sorted({0, len(one), *dice.choices(range(len(one) + 1), k=7)})
            for partition, one in self.log.items()
        }
        steps = max(len(one) for one in ends.values())
        for number, (at, after) in enumerate(pairwise(range(steps)), 1):
            firsts, nexts = ({p: one[min(i, len(one) - 1)] for p, one in ends.items()} for i in (at, after))
            version = dice.choice([version, *(one for one in self.versions if one >= version)])
            yield a_slice(
                number,
                offsets_first={"s": firsts},
                offsets={"s": nexts},
                watermark_ms=None,
                rule=EventTimeRule(3_600_000, None),
                stream_versions={"s": 1},
                lookup_versions={"sites": version} if version else {},
            )

    def run(self, batches: list[list[SliceRow]]) -> tuple[dict[Any, Any], Counter[str], dict[Any, Any], list[Any]]:
        """(records, counts of rejects, dead letters, results of windows) when the slices are read in these batches."""
        formats = StreamFormats(self.ledger, self.config.decoding.formats, self.config.decoding.lookups)
        task = SourceTask(self.config)
        cascade = Cascade(self.pipeline.stages, 1)
        records: dict[Any, Any] = {}
        letters: dict[Any, Any] = {}
        rejected: Counter[str] = Counter()
        state: bytes | None = None
        for batch in batches:
            chunks, blobs = [], []
            for pieces in spread_pieces(batch, self.dice.randrange(1, 4), formats):
                for rows in task.read(pieces, is_new=True, work=None):
                    for row in rows.to_pylist():
                        _, kind, partition, sequence, blob = row.values()
                        if kind == RECORDS:
                            chunks.append(Chunk(partition, sequence, blob))
                        elif kind == RECORD_ROWS:
                            blobs.append((partition, sequence, blob))
                        elif kind == FACTS:
                            rejected.update(decode_facts(blob).rejected)
                        elif kind == REJECTED:
                            (found,) = unpack(blob)
                            letters |= {(one["partition"], one["offset"]): one["reason"] for one in found.to_pylist()}
            for batches in unpack_record_rows(blobs).values():
                for one in (row for batch in batches for row in batch.to_pylist()):
                    records[one["@partition"], one["@offset"]] = (one["rated"], one["note"])
            state = cascade.step(state, chunks, Closing(None, None)).state
        results = cascade.step(state, [], Closing(None, 10**13)).results[0].rows.to_pylist()
        return records, rejected, letters, results

    def audited(self, directory: Path) -> tuple[Counter[str], set[Any]]:
        """Return what an audit counts as rejected, and the dead letters that it expects.

        It reads the slices in its own tasks.
        """
        formats = StreamFormats(self.ledger, self.config.decoding.formats, self.config.decoding.lookups)
        compared = Table(directory / "compared", ROWS_SCHEMA)
        compared.create()
        stage = self.pipeline.stages[0]
        query = query_of(stage, 0, dict(stage.inputs[0].columns))
        rows = Table(directory / "rows", query.row_schema)
        rows.create()
        rejected: Counter[str] = Counter()
        for number, task in enumerate(cut_tasks(self.slices, 1, self.dice.randrange(20, 200), formats)):
            part = RecordsPart(
                name=f"part-{number}",
                decoding=self.config.decoding,
                first=((stage, *stage.record_paths[0], rows),),
                types=STREAM.types,
                events_from_ms=0,
                events_before_ms=10**14,
                has_late_letters=True,
                task=task,
                compared=compared,
            )
            rejected += part.run().rejected
        letters = set()
        for file in compared.directory.iterdir():
            for row in pq.read_table(file).to_pylist():
                _, partition, offset = row["id"].split("/")
                letters.add(((int(partition), int(offset)), row["body"].decode()))
        return rejected, letters

    def expected(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Records with what they get, and dead letters with their reason: by plain Python."""
        records, letters = {}, {}
        tables = {
            version: {tuple(canonical(row[name]) for name in self.key): row for row in one["rows"]}
            for version, one in self.versions.items()
        }
        for one in self.slices:
            table = tables[one.lookup_versions.get("sites", self.base)]
            for partition, end in one.offsets["s"].items():
                for offset in range(one.offsets_first["s"][partition], end):
                    value = self.log[partition][offset]
                    if value == b"{broken":
                        letters[partition, offset] = "decode"
                        continue
                    record = json.loads(value)
                    if record["power"] < 0:
                        continue
                    row = table.get(tuple(canonical(record.get(name)) for name in self.key))
                    if row is None and not self.optional:
                        letters[partition, offset] = "lookup"
                    else:
                        records[partition, offset] = (row["rated"], row["note"]) if row else (None, None)
        return records, letters


def canonical(value: Any) -> Any:
    return Decimal(value) if isinstance(value, str) and value.replace(".", "").isdigit() else value


def read_lookup_of(document: dict[str, Any]) -> Any:
    from strandline.core.documents import YamlDocument

    return read_lookup(YamlDocument("lookup", "sites", document))


@pytest.mark.guarantee(
    "G440",
    "A record is enriched by the version of the lookup that is recorded with its slice. This is the version at the "
    "planning of the slice, and none older than at the arrival of the record. Every replay uses it, to the last bit.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@pytest.mark.guarantee(
    "G442",
    "A record whose key has no row is one dead letter with the reason `lookup`, or continues with nulls if the step "
    "is optional. Found rows equal those of a dictionary.",
    promise="each-rejected-record-is-one-dead-letter",
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_record_gets_what_the_version_of_its_slice_says_in_every_replay(
    seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_url = f"sqlite:///{tmp_path}/ledger.sqlite"
    ledger = Ledger.open(ledger_url)
    world = World(seed, ledger, ledger_url)
    monkeypatch.setattr(decoding, "reader_of_process", lambda bootstrap: Reader(world.log))
    first = world.run([[one] for one in world.slices])
    records, letters = world.expected()
    assert first[0] == records
    assert first[2] == letters
    assert first[1] == Counter(letters.values())
    for _ in range(2):
        places = sorted({0, len(world.slices), *world.dice.choices(range(len(world.slices) + 1), k=2)})
        batches = [world.slices[at:after] for at, after in pairwise(places)]
        assert world.run(batches) == first, f"seed {seed}: in batches of {list(map(len, batches))} slices"
    assert world.audited(tmp_path) == (first[1], set(letters.items()))
    ledger.close()


@pytest.mark.guarantee("G442")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_row_is_found_as_a_dictionary_finds_it(seed: int) -> None:
    """With fewer and with more rows than records, with one key column and several, with nulls among the records."""
    dice = random.Random(seed)
    types = [dice.choice([pa.string(), pa.int64(), pa.bool_()]) for _ in range(dice.randrange(1, 5))]

    def key() -> tuple[Any, ...]:
        of_type = {pa.string(): lambda: f"k{dice.randrange(9)}", pa.int64(): lambda: dice.randrange(-5, 5)}
        return tuple(of_type.get(one, lambda: dice.random() < 0.5)() for one in types)

    rows = list(dict.fromkeys(key() for _ in range(dice.choice([0, 1, 30, 2_000]))))
    names = [str(at) for at in range(len(types))]
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
    table = LookupTable("t", 1, pa.RecordBatch.from_arrays(columns, names), names)
    asked = [tuple(None if dice.random() < 0.05 else one for one in key()) for _ in range(dice.choice([0, 1, 20, 500]))]
    found = table.find([pa.array([one[at] for one in asked], kind) for at, kind in enumerate(types)])
    place = {row: at for at, row in enumerate(rows)}
    assert found.to_pylist() == [place.get(one) for one in asked]


def test_the_desk_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the text, by their names."""
    text = (
        "lookup: sites\nschema: {site: string, rated: double}\nkey: site\nrows: [{site: a, rated: 2}]\n---\n"
        "stream: s\nschema: {ts: timestamp, site: string}\n---\n"
        "pipeline: j\ninput: {stream: s}\nevent_time: {field: ts, delay: 1s}\nsteps:\n"
        "  - enrich: {lookup: sites, key: site, add: [rated]}\n  - emit: [{elasticsearch: out}]\n"
    )
    checked = read_pipeline(text.encode(), "a")
    assert checked.tables["sites"].find([pa.array(["b", "a"])]).to_pylist() == [None, 0]
