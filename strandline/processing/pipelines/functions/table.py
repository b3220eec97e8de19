"""The table of the functions that an expression can call. Aggregates have another table."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.processing.pipelines.functions.array_functions import ARRAY_FUNCTIONS
from strandline.processing.pipelines.functions.choice_functions import CHOICE_FUNCTIONS
from strandline.processing.pipelines.functions.number_functions import NUMBER_FUNCTIONS
from strandline.processing.pipelines.functions.signature import Function
from strandline.processing.pipelines.functions.text_functions import TEXT_FUNCTIONS
from strandline.processing.pipelines.functions.time_functions import TIME_FUNCTIONS

TABLE: tuple[Function, ...] = (
    *NUMBER_FUNCTIONS,
    *TEXT_FUNCTIONS,
    *TIME_FUNCTIONS,
    *ARRAY_FUNCTIONS,
    *CHOICE_FUNCTIONS,
)
BY_NAME: Mapping[str, Function] = {function.name: function for function in TABLE}
CALLS: Mapping[str, Function] = {function.name: function for function in TABLE if function.node is None}
"""Functions that the parser leaves as plain calls."""
OTHER_NAMES: Mapping[str, str] = {"signum": "sign", "dayofmonth": "day"}
"""Other name of a function -> its name in the table."""
