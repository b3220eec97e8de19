"""The recomputation: one plain batch aggregation a stage turns a span's records into its windows, without state, watermark
or replay. It shares only the decoder and the expressions with a running job.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from strandline.core.record_headers import REASON_EXPRESSION, REASON_LATE
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import VersionSpan
from strandline.processing.audit.reconciliation import DEAD_LETTERS, Finding, Kind, Reconciler, Side
from strandline.processing.audit.source import ROWS_DDL
from strandline.processing.audit.stages import PROBLEM, apply_steps, types_of, value_of
from strandline.processing.audit.tasks import FINDINGS_DDL, WINDOW, ExpectedDocuments, Reconciling
from strandline.processing.emission.document_shapes import document_shape
from strandline.processing.pipelines.stages import Stage
from strandline.processing.source.decoding import EVENT_TIME
from strandline.processing.source.recorded_slices import OFFSET, OWN, PARTITION, REASON

KEPT = StorageLevel.MEMORY_AND_DISK
_REFUSAL = "_strandline_refusal"
_RECORDS = "records"


@dataclass(frozen=True)
class Recomputed:
    """One span, recomputed. The first use of a frame reads the log; later uses don't."""

    span: VersionSpan
    stages: dict[str, DataFrame]
    """Stage -> its results: window, by fields, aggregates."""
    refused: DataFrame
    """Reason, partition and offset of each refused record."""
    _kept: tuple[DataFrame, ...]
    _read: Observation

    def materialize(self) -> None:
        """Read the log and keep the results in memory and on disk."""
        for frame in self._kept:
            frame.count()

    def records(self) -> int:
        """How many records the span's own slices hold. After `materialize`."""
        return int(self._read.get[_RECORDS] or 0)

    def rejected(self) -> dict[str, int]:
        """Reason -> records. After `materialize`."""
        rows = self.refused.groupBy("reason").count().collect()  # a row for each reason
        return {row["reason"]: row["count"] for row in rows}


def recompute(records: DataFrame, span: VersionSpan) -> Recomputed:
    """Compute a span's windows, and which of its records are refused, from `span_frame`'s records.

    Refused records pass through the first aggregation as groups of their own, so that the log is read once for both.
    """
    first, *later = span.pipeline.stages
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
        (event_ms >= span.events_from_ms) & (event_ms < span.events_before_ms)
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
    inside = {name: frame.where(_ends_in(span.windows[name])) for name, frame in stages.items() if name in span.windows}
    return Recomputed(span, inside, refused, tuple(kept), read)


def _aggregate(frame: DataFrame, stage: Stage, apart: list[str]) -> DataFrame:
    types = types_of(frame)
    return frame.groupBy(F.window(EVENT_TIME, f"{stage.size_ms} milliseconds").alias(WINDOW), *stage.by, *apart).agg(
        *[value_of(column, types).alias(column.name) for column in stage.aggregates]
    )


def _ends_in(ends: EndRange) -> Column:
    end_ms = F.unix_millis(F.col(f"{WINDOW}.end"))
    return (end_ms > (ends.after_ms or 0)) & (end_ms <= (ends.up_to_ms or 0))


def expected_documents(recomputed: Recomputed) -> list[DataFrame]:
    """The documents that the index must show for a span and the streams must hold, as rows to compare. Windows that a later
    generation replaced are left out. A backfill writes to no stream."""
    span = recomputed.span
    frames = []
    for stage in span.pipeline.stages:
        for emit in stage.emits if stage.name in recomputed.stages else ():
            if emit.kind not in ("elasticsearch", "stream") or (emit.kind == "stream" and span.generation > 1):
                continue
            shown = recomputed.stages[stage.name]
            for newer in span.replaced.get(emit.name, ()) if emit.kind == "elasticsearch" else ():
                shown = shown.where(~_ends_in(EndRange(newer.after_ms, newer.up_to_ms)))
            shape = document_shape(span.pipeline, stage, emit, span.version, span.generation)
            frames.append(shown.mapInArrow(ExpectedDocuments(shape), ROWS_DDL))
    return frames


def expected_letters(recomputed: Recomputed) -> DataFrame:
    """The dead letters that a span's records must have, as rows to compare."""
    pipeline = recomputed.span.pipeline
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


def reconciled(rows: list[DataFrame], reconciler: Reconciler) -> DataFrame:
    """Compare all these rows by store and id: a finding for each difference, and counts of all else."""
    whole = rows[0]
    for frame in rows[1:]:
        whole = whole.unionByName(frame)
    return (
        whole.repartition("store", "id")
        .sortWithinPartitions("store", "id", "side", "place")
        .mapInArrow(Reconciling(reconciler), FINDINGS_DDL)
    )


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
