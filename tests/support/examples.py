"""How many generated examples a property gets."""

from typing import Any

from hypothesis import settings

_WHOLE = 100
"""What Hypothesis tries where nothing is said."""


def examples(count: int, **more: Any) -> settings:
    """So many in `make test-all`, one of twelve in `make test`: the share that the profile has of Hypothesis' own number.

    `more`: other settings.
    """
    return settings(max_examples=max(1, count * settings().max_examples // _WHOLE), **more)
