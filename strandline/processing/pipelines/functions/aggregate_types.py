"""What the arguments of the aggregate functions may be, beyond the types of their values: percentiles and filters. Pure."""

from __future__ import annotations

from sqlglot import exp

from strandline.processing.pipelines.expressions import ExpressionError, sql_of

_MEDIAN = 0.5


def share_of(node: exp.Expr) -> float:
    """Which percentile a call gives: 0.95 of `percentile(x, 0.95)`. 0 for other functions. Raises ExpressionError."""
    if isinstance(node, exp.Median):
        return _MEDIAN
    if not isinstance(node, exp.Quantile | exp.ApproxQuantile):
        return 0.0
    written = node.args["quantile"]
    share = float(written.name) if isinstance(written, exp.Literal) and not written.is_string else -1.0
    if not 0 <= share <= 1:
        raise ExpressionError(
            f"{sql_of(node)}: the second argument must be written out as a number from 0 to 1, as percentile(x, 0.95)"
        )
    return share
