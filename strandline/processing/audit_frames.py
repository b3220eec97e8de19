"""The recomputation: a stretch's records become its windows by one plain batch aggregation a stage, without state, watermark
or replay. It shares with a running job the decoder and the expressions, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from strandline.core.record import REASON_EXPRESSION, REASON_LATE
from strandline.processing.audit_plan import Stretch
from strandline.processing.audit_source import OFFSET, OWN, PARTITION, REASON, ROWS_DDL, rows_batch
from strandline.processing.emission import document_shape
from strandline.processing.log_source import EVENT_TIME
from strandline.processing.pipeline import Stage
from strandline.processing.stages import PROBLEM, apply_steps, types_of, value_of
from strandline.results.document import Document, DocumentShape
from strandline.results.held_documents import EndRange, encode_result
from strandline.results.judgement import DEAD_LETTERS, Finding, Judge, Kind, Row, Side

KEPT = StorageLevel.MEMORY_AND_DISK
WINDOW = "window"
_REFUSAL = "_strandline_refusal"
_RECORDS = "records"
FINDINGS_DDL = (
    "kind string, store string, label string, count long, id string, place string, end_ms long, detail string"
)
_FINDINGS_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("store", pa.string()),
        ("label", pa.string()),
        ("count", pa.int64()),
        ("id", pa.string()),
        ("place", pa.string()),
        ("end_ms", pa.int64()),
        ("detail", pa.string()),
    ]
)
_FINDINGS_A_BATCH = 1_000


@dataclass(frozen=True)
class Recomputed:
    """One stretch, computed. The log is read when the first frame is used, once."""

    stretch: Stretch
    stages: dict[str, DataFrame]
    """Stage -> its results in the stretch's windows: window, by fields, aggregates."""
    refused: DataFrame
    """Reason, partition and offset of each refused record."""
    _kept: tuple[DataFrame, ...]
    _read: Observation

    def materialize(self) -> None:
        """Read the log and keep what comes of it, in memory and on disk."""
        for frame in self._kept:
            frame.count()

    def records(self) -> int:
        """How many records the stretch's own slices hold. After `materialize`."""
        return int(self._read.get[_RECORDS] or 0)

    def rejected(self) -> dict[str, int]:
        """Reason -> records. After `materialize`."""
        rows = self.refused.groupBy("reason").count().collect()  # a row for each reason
        return {row["reason"]: row["count"] for row in rows}


def recompute(records: DataFrame, stretch: Stretch) -> Recomputed:
    """Compute a stretch's windows, and which of its records are refused, from `stretch_frame`'s records.

    Refused records pass through the first aggregation as groups of their own, so that the log is read once for both.
    """
    first, *later = stretch.pipeline.stages
    read = Observation()
    frame = records.observe(read, F.sum(F.col(OWN).cast("long")).alias(_RECORDS)).withColumn(PROBLEM, F.col(REASON))
    frame = apply_steps(frame, first.pre_steps)
    refusal = F.when(
        F.col(PROBLEM).isNotNull(),
        F.struct(
            F.coalesce(F.col(REASON), F.lit(REASON_EXPRESSION)).alias("reason"),
            F.col(PARTITION).alias("partition"),
            F.col(OFFSET).alias("offset"),
        ),
    )
    event_ms = F.unix_millis(EVENT_TIME)
    is_wanted = F.when(F.col(_REFUSAL).isNotNull(), F.col(OWN)).otherwise(
        (event_ms >= stretch.events_from_ms) & (event_ms < stretch.events_before_ms)
    )
    frame = frame.withColumn(_REFUSAL, refusal).where(is_wanted)
    grouped = _aggregate(frame, first, [_REFUSAL]).persist(KEPT)
    refused = grouped.where(F.col(_REFUSAL).isNotNull()).select(f"{_REFUSAL}.*")
    results = grouped.where(F.col(_REFUSAL).isNull()).drop(_REFUSAL)
    stages, kept = {first.name: results}, [grouped]
    for stage in later:
        frame = results.withColumn(EVENT_TIME, F.col(f"{WINDOW}.start")).drop(WINDOW)
        results = _aggregate(apply_steps(frame, stage.pre_steps), stage, []).persist(KEPT)
        stages[stage.name] = results
        kept.append(results)
    inside = {name: frame.where(_ends_in(stretch.windows[name])) for name, frame in stages.items()}
    return Recomputed(stretch, inside, refused, tuple(kept), read)


def _aggregate(frame: DataFrame, stage: Stage, apart: list[str]) -> DataFrame:
    types = types_of(frame)
    return frame.groupBy(F.window(EVENT_TIME, f"{stage.size_ms} milliseconds").alias(WINDOW), *stage.by, *apart).agg(
        *[value_of(column, types).alias(column.name) for column in stage.aggregates]
    )


def _ends_in(ends: EndRange) -> Column:
    end_ms = F.unix_millis(F.col(f"{WINDOW}.end"))
    return (end_ms > (ends.after_ms or 0)) & (end_ms <= (ends.up_to_ms or 0))


def expected_documents(recomputed: Recomputed) -> list[DataFrame]:
    """The documents that the index must hold for a stretch, as rows to judge."""
    pipeline, version = recomputed.stretch.pipeline, recomputed.stretch.version
    return [
        recomputed.stages[stage.name].mapInArrow(_Expected(document_shape(pipeline, stage, emit, version)), ROWS_DDL)
        for stage in pipeline.stages
        for emit in stage.emits
        if emit.kind == "elasticsearch"
    ]


@dataclass(frozen=True)
class _Expected:
    """Makes the documents of one emission, in an executor's Python worker."""

    shape: DocumentShape

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ends = pc.struct_field(batch.column(WINDOW), "end").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            documents = self.shape.documents(batch, 0, 0)
            yield rows_batch(
                [self._row(one, end_us // 1000) for one, end_us in zip(documents, ends.to_pylist(), strict=True)]
            )

    def _row(self, one: object, end_ms: int) -> Row:
        store = self.shape.emit_name
        if isinstance(one, Document):
            body = encode_result(msgspec.json.decode(one.source))
            return Row(store, one.id, Side.COMPUTED, one.index, end_ms, None, body)
        return Row(store, one.id, Side.COMPUTED, "", end_ms, None, None)  # type: ignore[attr-defined]


def expected_letters(recomputed: Recomputed) -> DataFrame:
    """The dead letters that must be there for a stretch's records, as rows to judge."""
    pipeline = recomputed.stretch.pipeline
    refused = recomputed.refused
    if pipeline.spec.late == "drop":
        refused = refused.where(F.col("reason") != REASON_LATE)
    identity = F.concat_ws("/", F.lit(pipeline.spec.input.stream), F.col("partition"), F.col("offset"))
    return refused.select(
        F.lit(DEAD_LETTERS).alias("store"),
        identity.alias("id"),
        F.lit(int(Side.COMPUTED)).cast("byte").alias("side"),
        F.lit("").alias("place"),
        F.lit(None).cast("long").alias("end_ms"),
        F.lit(None).cast("long").alias("emission"),
        F.col("reason").cast("binary").alias("body"),
    )


def judged(rows: list[DataFrame], judge: Judge) -> DataFrame:
    """What the judge finds in all these rows, put together by store and id: differences singly, all else as numbers."""
    whole = rows[0]
    for frame in rows[1:]:
        whole = whole.unionByName(frame)
    return (
        whole.repartition("store", "id")
        .sortWithinPartitions("store", "id", "side", "place")
        .mapInArrow(_Judging(judge), FINDINGS_DDL)
    )


@dataclass(frozen=True)
class _Judging:
    judge: Judge

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (
            Row(*values)
            for batch in batches
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        findings: list[Finding] = []
        for finding in self.judge.findings(rows):
            findings.append(finding)
            if len(findings) >= _FINDINGS_A_BATCH:
                yield _findings_batch(findings)
                findings = []
        yield _findings_batch(findings)


def _findings_batch(findings: list[Finding]) -> pa.RecordBatch:
    arrays = [pa.array([getattr(finding, item.name) for finding in findings], item.type) for item in _FINDINGS_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_FINDINGS_SCHEMA)


def counts_of(findings: DataFrame) -> dict[tuple[str, str, str], int]:
    """(store, kind, label) -> how many."""
    rows = (
        findings.groupBy("store", "kind", "label").agg(F.sum("count").alias("count")).collect()
    )  # a few kinds a store
    return {(row["store"], row["kind"], row["label"]): int(row["count"]) for row in rows}


def sample_of(findings: DataFrame, kinds: tuple[Kind, ...], limit: int) -> list[Finding]:
    """The first `limit` of the differences, by store, window and id."""
    found = findings.where(F.col("kind").isin([kind.value for kind in kinds]))
    rows = found.orderBy("store", "end_ms", "id").limit(limit).collect()
    return [
        Finding(Kind(r["kind"]), r["store"], r["label"], r["count"], r["id"], r["place"], r["end_ms"], r["detail"])
        for r in rows
    ]
