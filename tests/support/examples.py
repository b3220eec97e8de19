"""Number of generated examples of a property."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

_WHOLE = 100
"""What Hypothesis tries where nothing is said."""


def examples(count: int, **more: Any) -> settings:
    """Settings with this many examples in `make test-all`, and a twelfth in `make test`: the share of the profile in
    Hypothesis' own number.

    `more`: other settings.
    """
    return settings(max_examples=max(1, count * settings().max_examples // _WHOLE), **more)


def one_in(many: int, cases: Sequence[Any]) -> list[Any]:
    """The cases of a parametrized test: all in `make test-all`, the first of each `many` in `make test`."""
    return [pytest.param(case, marks=pytest.mark.long if at % many else ()) for at, case in enumerate(cases)]
