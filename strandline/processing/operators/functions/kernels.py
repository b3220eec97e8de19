"""Implementations of the functions of the table. Arguments are columns, or values if they must be constants."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.processing.operators.functions.array_kernels import ARRAY_KERNELS
from strandline.processing.operators.functions.number_kernels import NUMBER_KERNELS
from strandline.processing.operators.functions.text_kernels import WORD_KERNELS
from strandline.processing.operators.functions.times import TIME_KERNELS, Kernel
from strandline.processing.operators.functions.written_times import WRITTEN_TIME_KERNELS
from strandline.processing.operators.functions.zones import ZONE_KERNELS

KERNELS: Mapping[str, Kernel] = {
    **NUMBER_KERNELS,
    **WORD_KERNELS,
    **TIME_KERNELS,
    **ZONE_KERNELS,
    **WRITTEN_TIME_KERNELS,
    **ARRAY_KERNELS,
}
