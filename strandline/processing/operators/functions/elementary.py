"""Powers, logarithms and angles, correctly rounded: the double that is nearest to the exact value, on every machine.

The C library and numpy promise less, and choose instructions by the processor: with AVX-512, the last bit of `exp(x)` differs.
If a job then continued on another machine, its results would differ from those that it emitted. So each value is computed with
more digits than a double has. If an error of sixteen units in the last of these digits can't change the nearest double, this
double is the value. This is so in 98 of 100 cases. MPFR computes the other values (Ziv's strategy: "Fast evaluation of
elementary mathematical functions with correctly rounded last bit", ACM TOMS 17, 1991).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.operators.arithmetic import array_of, numbers_of, valid_in
from strandline.processing.operators.functions.times import Kernel

_Doubles = npt.NDArray[np.float64]
_ERROR = 16 * np.finfo(np.longdouble).eps
"""Maximum relative error of the C library's functions of long doubles. Those of glibc err by at most two units in the last
place."""
_DOUBLE = gmpy2.ieee(64)


def correctly_rounded(
    many: Callable[..., npt.NDArray[np.longdouble]], one: Callable[..., Any]
) -> Callable[..., _Doubles]:
    """Return a function of arrays of doubles with correctly rounded values.

    `many`: computes all values as long doubles. If its error could change the nearest double of a value, `one` computes that
    value exactly."""

    def compute(*operands: _Doubles) -> _Doubles:
        with np.errstate(all="ignore"):
            near = many(*[operand.astype(np.longdouble) for operand in operands])
            error = np.abs(near) * _ERROR
            values: _Doubles = (near - error).astype(np.float64)
            # Infinite values have no error, and NaN differs from itself.
            unsettled = (values != (near + error).astype(np.float64)) & np.isfinite(near)
            values = np.where(np.isfinite(near), values, near.astype(np.float64))
        for at in np.flatnonzero(unsettled).tolist():
            values[at] = float(one(*[float(operand[at]) for operand in operands]))
        return values

    return compute


def _kernel(many: Callable[..., npt.NDArray[np.longdouble]], one: Callable[..., Any]) -> Kernel:
    compute = correctly_rounded(many, one)
    return lambda *operands: array_of(compute(*map(numbers_of, operands)), valid_in(*operands))


def _above_zero(compute: Kernel) -> Kernel:
    """Return null for zero and negative values."""
    return lambda x: compute(pc.if_else(pc.less_equal(x, 0.0), pa.scalar(None, pa.float64()), x))


ELEMENTARY_KERNELS: dict[str, Kernel] = {
    "sqrt": pc.sqrt,  # every processor rounds it correctly, as IEEE 754 requires
    "exp": _kernel(np.exp, _DOUBLE.exp),
    "ln": _above_zero(_kernel(np.log, _DOUBLE.log)),
    "log10": _above_zero(_kernel(np.log10, _DOUBLE.log10)),
    "log2": _above_zero(_kernel(np.log2, _DOUBLE.log2)),
    "pow": _kernel(np.power, _DOUBLE.pow),
    "cbrt": _kernel(np.cbrt, _DOUBLE.cbrt),
    "sin": _kernel(np.sin, _DOUBLE.sin),
    "cos": _kernel(np.cos, _DOUBLE.cos),
    "tan": _kernel(np.tan, _DOUBLE.tan),
    "asin": _kernel(np.arcsin, _DOUBLE.asin),
    "acos": _kernel(np.arccos, _DOUBLE.acos),
    "atan": _kernel(np.arctan, _DOUBLE.atan),
    "atan2": _kernel(np.arctan2, _DOUBLE.atan2),
}
