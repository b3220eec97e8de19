"""The keyed tasks as Spark frames."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupStateTimeout

from strandline.processing.emission.keyed_task import OUTCOME_DDL, STATE_DDL, KeyedTask


def keyed_query(rows: DataFrame, task: KeyedTask) -> DataFrame:
    """Return the outcomes of all buckets, from the rows of `source.slice_rows`: a streaming frame of a few small rows.

    The merge of a last stage that is split crosses one more exchange, and keeps no state.
    """
    done = rows.groupBy("bucket").applyInPandasWithState(
        task, OUTCOME_DDL, STATE_DDL, "append", GroupStateTimeout.NoTimeout
    )
    if not task.cascade.is_split:
        return done
    # Spark counts the parameters, and takes no method for a function.
    return done.groupBy("bucket").applyInPandas(lambda key, frame: task.merge(key, frame), OUTCOME_DDL)
