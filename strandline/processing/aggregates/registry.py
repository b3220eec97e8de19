"""The one registry of aggregate functions."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.processing.aggregates.cardinality.function import APPROXIMATE_COUNT_DISTINCT
from strandline.processing.aggregates.chosen_rows import FIRST, LAST, MAX_BY, MIN_BY
from strandline.processing.aggregates.contract import AggregateFunction, named
from strandline.processing.aggregates.count import COUNT
from strandline.processing.aggregates.extremes import MAXIMUM, MINIMUM
from strandline.processing.aggregates.histogram import HISTOGRAM
from strandline.processing.aggregates.most_frequent import MOST_FREQUENT
from strandline.processing.aggregates.percentiles.function import APPROXIMATE_PERCENTILE, MEDIAN, PERCENTILE
from strandline.processing.aggregates.ranked_rows import BOTTOM_N, BOTTOM_N_BY, COLLECT_LIST, TOP_N, TOP_N_BY
from strandline.processing.aggregates.sums import AVERAGE, SUM
from strandline.processing.aggregates.variance import (
    DEVIATION,
    POPULATION_DEVIATION,
    POPULATION_VARIANCE,
    VARIANCE,
)

BUILT_IN: tuple[AggregateFunction, ...] = (
    COUNT,
    SUM,
    AVERAGE,
    MINIMUM,
    MAXIMUM,
    DEVIATION,
    VARIANCE,
    POPULATION_DEVIATION,
    POPULATION_VARIANCE,
    FIRST,
    LAST,
    MIN_BY,
    MAX_BY,
    APPROXIMATE_COUNT_DISTINCT,
    PERCENTILE,
    MEDIAN,
    APPROXIMATE_PERCENTILE,
    COLLECT_LIST,
    TOP_N,
    BOTTOM_N,
    TOP_N_BY,
    BOTTOM_N_BY,
    MOST_FREQUENT,
    HISTOGRAM,
)
"""The functions of Strandline, in the order of the docs."""
BY_NAME: Mapping[str, AggregateFunction] = named(BUILT_IN)
"""All names of the functions of Strandline, also the other names."""
