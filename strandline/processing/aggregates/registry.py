"""The registry of aggregate functions: built-in functions, and functions that installed packages add.

A package adds a function by an entry point of the group `strandline.aggregates`. Its name is the name of the function, in lower
case. It refers to a constant, an `AggregateFunction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.core.errors import FunctionUnusable
from strandline.core.packages import PackagePart, parts_of_packages
from strandline.processing.aggregates.cardinality.function import APPROXIMATE_COUNT_DISTINCT
from strandline.processing.aggregates.chosen_rows import FIRST, LAST, MAX_BY, MIN_BY
from strandline.processing.aggregates.consecutive import CURRENT, DELTA, DURATION, INCREASE, LAG, RATE
from strandline.processing.aggregates.contract import AggregateFunction, named
from strandline.processing.aggregates.count import COUNT
from strandline.processing.aggregates.extremes import MAXIMUM, MINIMUM
from strandline.processing.aggregates.histogram import HISTOGRAM
from strandline.processing.aggregates.most_frequent import MOST_FREQUENT
from strandline.processing.aggregates.percentiles.function import APPROXIMATE_PERCENTILE, MEDIAN, PERCENTILE
from strandline.processing.aggregates.ranked_rows import BOTTOM_N, BOTTOM_N_BY, COLLECT_LIST, TOP_N, TOP_N_BY
from strandline.processing.aggregates.record_numbers import RECORDS_OF
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
    LAG,
    CURRENT,
    DELTA,
    INCREASE,
    RATE,
    DURATION,
)
"""The functions of Strandline, in the order of the docs."""
BY_NAME: Mapping[str, AggregateFunction] = named(BUILT_IN)
"""All names of the functions of Strandline, also the other names."""
INTERNAL: Mapping[str, AggregateFunction] = named((RECORDS_OF,))
"""Functions that Strandline adds to stages itself. Documents can't call them."""
GROUP = "strandline.aggregates"
"""Group of the entry points."""


def package_functions() -> Mapping[str, PackagePart]:
    """Return name -> function, of all installed packages."""
    return parts_of_packages(GROUP, "aggregate function", frozenset(BY_NAME))


def function_of(name: str) -> AggregateFunction:
    """Return the function that has this name. Raises FunctionUnusable if its package can't be used."""
    if name in BY_NAME:
        return BY_NAME[name]
    if name in INTERNAL:
        return INTERNAL[name]
    part = package_functions()[name]
    function = part.load(AggregateFunction)  # type: ignore[type-abstract]  # an instance of a subclass
    if function.name != name:
        raise FunctionUnusable(
            f"the aggregate function {name} of {part.package} calls itself {function.name}; install a release of the package in "
            "which the two names are equal"
        )
    return function


def packages_of(names: Iterable[str]) -> dict[str, str]:
    """Return name -> package with its release, of those of these functions that packages add."""
    added = package_functions()
    own = BY_NAME.keys() | INTERNAL.keys()
    return {name: added[name].package for name in dict.fromkeys(names) if name not in own}


def require_packages(packages: Mapping[str, str]) -> None:
    """Raise FunctionUnusable unless these functions are in these packages here. `packages`: as `packages_of` returns them."""
    for name, wanted in packages.items():
        part = package_functions().get(name)
        if part is None or part.package != wanted:
            here = "no package" if part is None else part.package
            raise FunctionUnusable(
                f"the aggregate function {name} belongs to {here} here, but to {wanted} where the job was started; install the "
                "same package everywhere, and restart the job"
            )
