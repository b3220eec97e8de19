"""Powers, logarithms and angles: the double that is nearest to the true value, so the same one on every machine."""

from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.processing.operators.functions.elementary import ELEMENTARY_KERNELS, correctly_rounded
from tests.support.examples import examples

OF_TWO = {"pow", "atan2"}
DIGITS = gmpy2.context(precision=400, emax=gmpy2.get_emax_max(), emin=gmpy2.get_emin_min())
DOUBLES = st.floats() | st.floats(-10, 10) | st.integers(-1000, 1000).map(float)


def nearest(name: str, operands: tuple[float, ...]) -> float:
    """Computed with 400 bits first, and rounded to a double then."""
    wide = getattr(DIGITS, {"ln": "log"}.get(name, name))(*operands)
    return float(gmpy2.ieee(64).plus(wide))


@pytest.mark.guarantee(
    "G445",
    "Powers, roots, logarithms, and angles in expressions are correctly rounded, so a job has the same results on "
    "every machine.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize("name", ELEMENTARY_KERNELS)
@examples(50)
@given(pairs=st.lists(st.tuples(DOUBLES, DOUBLES), min_size=1, max_size=50))
def test_each_value_is_the_nearest_double(name: str, pairs: list[tuple[float, float]]) -> None:
    operands = pairs if name in OF_TWO else [(x,) for x, _ in pairs]
    found = ELEMENTARY_KERNELS[name](*[pa.array(column, pa.float64()) for column in zip(*operands, strict=True)])
    for value, of in zip(found.to_pylist(), operands, strict=True):
        if value is None:
            assert name in {"ln", "log10", "log2"} and of[0] <= 0
        else:
            assert repr(value) == repr(nearest(name, of)).replace("-nan", "nan"), of


@pytest.mark.guarantee("G445")
def test_what_is_next_to_the_middle_of_two_doubles_is_computed_with_more_digits() -> None:
    """Half of the numbers from 1 to 2 that have 54 bits lie in the middle; a long double close by doesn't tell the side."""
    asked: list[float] = []

    def middle(x: Any) -> Any:
        return x + np.longdouble(2) ** -53

    def right(x: float) -> float:
        asked.append(x)
        return x

    compute: Callable[..., Any] = correctly_rounded(middle, right)
    assert compute(np.array([1.0, 1.5])).tolist() == [1.0, 1.5]
    assert asked == [1.0, 1.5]


def test_what_is_not_known_has_no_value() -> None:
    for name in {"exp", "cbrt", "sin"}:
        assert ELEMENTARY_KERNELS[name](pa.array([None, 0.0])).is_null().to_pylist() == [True, False]
