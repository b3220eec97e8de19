"""The layout of a binary record, and its values as columns. Pickled with the options of a stream."""

from __future__ import annotations

from typing import NamedTuple

SIZE_MAX = 65_536
"""Maximum number of bytes of a layout."""
INTEGERS = {f"{sign}{8 * width}": width for sign in ("uint", "int") for width in (1, 2, 3, 4, 6, 8)}
"""Type of an integer -> number of its bytes."""
FLOATS = {f"float{8 * width}": width for width in (2, 4, 8)}
"""Type of an IEEE 754 number -> number of its bytes."""


class Bits(NamedTuple):
    """Bits of an integer that have a name."""

    name: str
    first: int
    width: int
    is_flag: bool
    """True if the value is a boolean."""


class Member(NamedTuple):
    """One value of a record."""

    name: str
    """Empty if only bits have names."""
    type: str
    at: int
    """Index of the first byte."""
    width: int
    """Number of bytes."""
    is_big: bool
    """True if the first byte is the most significant."""
    factors: tuple[str, str] | None
    """Factor and summand of the raw number, as decimals. None if the value is the raw number."""
    missing: int | None
    """Raw integer that means that there is no value. None if there is none."""
    bits: tuple[Bits, ...]


class Layout(NamedTuple):
    """All values of a record."""

    members: tuple[Member, ...]
    size: int
    """Number of bytes of a record."""
    ignores_longer: bool
    """True if a record can have more bytes."""

    @property
    def names(self) -> list[str]:
        """Names of all values."""
        return [name for one in self.members for name in (one.name, *(bits.name for bits in one.bits)) if name]
