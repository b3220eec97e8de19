"""Slices of records through source tasks and keyed tasks into files, a table, and the sink of a package. Runs die at any moment,
and begin again with other buckets. Readers see each record once, with its value. No Spark, no Kafka; `RECORDS=1000000` makes it a
long test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.processing.emission.keyed_task import DeadLetterTarget, KeyedTask
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.emission.stage_emission import RecordEmission
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.decoding import DecodedChunk, decoder_of, task_config
from strandline.processing.source.slice_rows import WORK, SliceRowBlob, SliceWork, bucket_keys, encode
from strandline.processing.source.source_task import SourceTask
from strandline.results.sinks.files.writer import committed_files
from strandline.results.sinks.registry import PACKAGE, sink_writer
from tests.support.plugins import forget_toys, install_toys
from tests.support.sinks import OWN_STORES

RECORDS = int(os.environ.get("RECORDS", "400"))
SLICES, KILLS, PARTITIONS, CHUNK = 12, 10, 3, 10_000
STREAM = StreamSpec.from_document(
    {"stream": "farm", "schema": {"device": "string", "ts": "timestamp", "number": "long", "temp": "double"}}
)


def pipeline_of(files: Path) -> CheckedPipeline:
    document: dict[str, object] = {
        "pipeline": "power",
        "input": {"stream": "farm"},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "steps": [
            {"where": "number % 10 <> 3"},
            {"derive": {"half": "temp / 2"}},
            {
                "emit": [
                    {"files": {"path": str(files)}},
                    {"sql": {"table": "farm"}},
                    {"sink": {"use": "arrow", "name": "farm"}},
                ],
                "name": "all",
            },
        ],
    }
    return check(PipelineSpec.from_document(document), STREAM)


class Killed(Exception):
    """The run dies here."""


class Job:
    """One job over a log. Only its commits outlive a run."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "files"
        self.url = f"sqlite:///{directory / 'results.sqlite'}"
        self.pipeline = pipeline_of(self.files)
        self.committed = 0
        self.epoch = 0

    def run(self, buckets: int, deaths: Iterator[int]) -> None:
        """Process slices until all are committed. `deaths`: how many of the slice's steps the run lives on, where it dies."""
        self.epoch += 1
        source, stage = task_config(self.pipeline, "nowhere", bucket_keys(buckets, 2)), self.pipeline.record_stages[0]
        shapes = [(document_shape(self.pipeline, stage, emit, 1), emit) for emit in stage.emits]
        writers = tuple(sink_writer(Settings(sql_sink_url=self.url), shape, emit) for shape, emit in shapes)
        letters = DeadLetterTarget("", "", "power", self.epoch, 0)
        shape = letter_shape(self.pipeline, stage, 1)
        emission = RecordEmission(writers, (), shape, "power", stage.name, self.epoch, None, "", "", 0)
        keyed = KeyedTask(source.stages, source.bucket_keys, (), letters, (emission,))
        emission.prepare_for_records()
        while self.committed < SLICES:
            lives = next(deaths)
            number = self.committed + 1
            rows = list(self.rows_of_slice(number, SourceTask(source)))
            parts: dict[str, list[str]] = {}
            for bucket, key in enumerate(source.bucket_keys):
                if lives == bucket:
                    raise Killed
                work = encode(SliceWork(number, True, None, None, {}, {}))
                own = [one[1:] for one in rows if one[0] == key]
                outcome = keyed.process(bucket, [*own, (WORK, 0, 0, work)], None).outcome
                for place, told in outcome.parts.items():
                    parts.setdefault(place, []).extend(told)
            if lives == buckets:
                raise Killed
            for place, told in parts.items():
                keyed.committed_writers[place].commit(number, self.epoch, told)
            if lives == buckets + 1:
                raise Killed
            self.committed = number

    def rows_of_slice(self, number: int, task: SourceTask) -> Iterator[SliceRowBlob]:
        size = -(-RECORDS // SLICES)
        records = range((number - 1) * size, min(RECORDS, number * size))
        for partition in range(PARTITIONS):
            own = [one for one in records if one % PARTITIONS == partition]
            for first in range(0, len(own), CHUNK):
                chosen = own[first : first + CHUNK]
                values: list[bytes | None] = [a_record(one) for one in chosen]
                offsets = [one // PARTITIONS for one in chosen]
                times_ms = [time_ms(one) for one in chosen]
                decoded = decoder_of(task._config.decoding.inputs[0]).decode(values, times_ms, None)
                assert not decoded.rejects
                chunk = DecodedChunk("farm", partition, offsets, times_ms, decoded, values.__getitem__)
                yield from task.rows([chunk], is_new=True, work=None)


def time_ms(number: int) -> int:
    """Some days, whatever the number of records."""
    return number * 200_000_000 // RECORDS


def a_record(number: int) -> bytes:
    return json.dumps(
        {"device": f"d{number % 7}", "ts": time_ms(number), "number": number, "temp": number / 7}
    ).encode()


def deaths(random: Random, buckets: int, *, is_to_die: bool) -> Iterator[int]:
    """For each slice how far the run comes in it; -1 is through."""
    while is_to_die and random.random() < 0.5:
        yield -1
    yield random.randint(0, buckets + 1) if is_to_die else -1
    while True:
        yield -1


def test_each_sink_goes_through_kills() -> None:
    (stage,) = pipeline_of(Path("/files")).record_stages
    assert {emit.kind for emit in stage.emits} == {*OWN_STORES, PACKAGE}


@pytest.mark.long
@pytest.mark.guarantee("G243")
@settings(max_examples=1 if RECORDS > 10_000 else 4, phases=(Phase.explicit, Phase.generate), deadline=None)
@given(st.integers(0, 2**32))
def test_whoever_dies_and_whenever_each_record_is_there_once(seed: int) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        install_toys(patch, "acme_sink")
        patch.setenv("ACME_ARROW_DIRECTORY", directory)
        job, random = Job(Path(directory)), Random(seed)
        patch.setenv("STRANDLINE_SQL_SINK_URL", job.url)
        patch.setattr("strandline.processing.operators.record_rows._BATCH_BYTES", random.choice([1, 1 << 28]))
        kills = KILLS
        while job.committed < SLICES:
            buckets = random.randint(1, 4)

            try:
                job.run(buckets, deaths(random, buckets, is_to_die=kills > 0))
            except Killed:
                kills -= 1
        numbers = [number for number in range(RECORDS) if number % 10 != 3]
        table = ds.dataset(list(committed_files(str(job.files)))).to_table(columns=["number", "half"]).sort_by("number")
        assert table["number"].to_pylist() == numbers
        halves = [number / 7 / 2 for number in numbers]
        assert table["half"].to_pylist() == halves
        engine = sa.create_engine(job.url)
        with engine.connect() as connection:
            found = list(connection.execute(sa.text("SELECT number, half FROM farm ORDER BY number")))
        engine.dispose()
        assert [tuple(row) for row in found] == list(zip(numbers, halves, strict=True))
        arrow = [pa.ipc.open_file(file).read_all() for file in Path(directory, "farm").glob("*.arrow")]
        assert pa.concat_tables(arrow).sort_by("number")["number"].to_pylist() == numbers
        forget_toys(patch)
