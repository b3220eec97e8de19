"""The options `struct` of a stream: the layout of a binary record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from strandline.core.document_model import DocumentModel, shown
from strandline.core.document_values import Number
from strandline.core.documents import COLUMNS_MAX, Path
from strandline.processing.formats.struct.layout import FLOATS, INTEGERS, SIZE_MAX, Bits, Layout, Member

MemberType = Literal[
    "uint8", "uint16", "uint24", "uint32", "uint48", "uint64", "int8", "int16", "int24", "int32", "int48", "int64",
    "float16", "float32", "float64", "bytes", "string", "skip",
]  # fmt: skip
ByteOrder = Literal["big", "little"]


def _checked_bits(value: Any) -> Any:
    bits = value if isinstance(value, list) else [value, 1]
    if len(bits) != 2 or any(type(one) is not int for one in bits) or not 0 <= bits[0] < 64 or not 1 <= bits[1] <= 64:
        raise ValueError(f"expected a bit, as 7, or [first bit, number of bits], as [0, 3]; got {shown(value)}")
    return value


BitRange = Annotated[int | list[int], BeforeValidator(_checked_bits)]


class MemberSpec(DocumentModel):
    """One value of the layout."""

    name: str | None = Field(default=None, min_length=1, max_length=200)
    """Name of the value. Without it, only the bits have names."""
    type: MemberType
    """Integer, IEEE 754 number, `bytes` (a string of hexadecimal digits), `string` (UTF-8 up to the first zero byte), or `skip`
    for bytes without meaning."""
    at: Annotated[int, Field(ge=0, lt=SIZE_MAX)] | None = None
    """Index of the first byte. Default: after the member before."""
    length: Annotated[int, Field(ge=1, le=SIZE_MAX)] | None = None
    """Number of bytes of `bytes`, `string`, and `skip`."""
    byte_order: ByteOrder | None = None
    """Order of the bytes of this number. Default: that of the layout."""
    scale: Number | None = None
    """Factor of the raw number, as 0.01. The value is a double."""
    offset: Number | None = None
    """Number that is added after the multiplication. The value is a double."""
    missing: int | None = None
    """Raw integer that means that there is no value, as 32767."""
    bits: dict[str, BitRange] = Field(default_factory=dict, max_length=64)
    """Name -> bit of an integer, which is a boolean, or `[first bit, number of bits]`, which is an integer. Bit 0 has the value
    1."""

    @property
    def is_scaled(self) -> bool:
        """True if the value is not the raw number."""
        return self.scale is not None or self.offset is not None

    @property
    def width(self) -> int:
        """Number of bytes."""
        return INTEGERS.get(self.type) or FLOATS.get(self.type) or self.length or 0

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        is_number = self.type in INTEGERS or self.type in FLOATS
        if is_number and self.length is not None:
            yield ("length",), f"'{self.type}' has a fixed length; remove it"
        if not is_number and self.length is None:
            yield (), f"'{self.type}' has no length of its own; add 'length', as 4"
        for name in ("scale", "offset"):
            if getattr(self, name) is not None and not is_number:
                yield (name,), f"'{name}' is for numbers, and this is '{self.type}'; remove it"
        for name, is_given in (("missing", self.missing is not None), ("bits", bool(self.bits))):
            if is_given and self.type not in INTEGERS:
                yield (name,), f"'{name}' is for integers, and this is '{self.type}'; remove it"
        if self.name is None and not self.bits and self.type != "skip":
            yield (), "has no name, so its value is lost; add 'name', or use 'type: skip'"
        for name, bits in self.bits.items():
            first, count = _first_and_count(bits)
            if self.type in INTEGERS and first + count > 8 * self.width:
                yield (
                    ("bits", name),
                    f"'{self.type}' has {8 * self.width} bits, and bit {first + count - 1} is not one of them",
                )


class StructSpec(DocumentModel):
    """The layout of a binary record."""

    byte_order: ByteOrder = "big"
    """Order of the bytes of a number: `big` if the first byte is the most significant."""
    members: list[MemberSpec] = Field(min_length=1, max_length=COLUMNS_MAX)
    """The values in their order."""
    longer: Literal["reject", "ignore"] = "reject"
    """`ignore` if a record can have more bytes after the layout."""

    def layout(self) -> Layout:
        """Return the layout for readers."""
        members = []
        for one, end in zip(self.members, ends_of(self.members), strict=True):
            if one.type == "skip":
                continue
            bits = tuple(Bits(name, *_first_and_count(bits), isinstance(bits, int)) for name, bits in one.bits.items())
            is_big = (one.byte_order or self.byte_order) == "big"
            factors = (str(1 if one.scale is None else one.scale), str(one.offset or 0)) if one.is_scaled else None
            start = end - one.width
            members.append(Member(one.name or "", one.type, start, one.width, is_big, factors, one.missing, bits))
        return Layout(tuple(members), max(ends_of(self.members)), self.longer == "ignore")

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        names: set[str] = set()
        for number, one in enumerate(self.members):
            for name in [*([one.name] if one.name else []), *one.bits]:
                if name in names:
                    yield ("members", number), f"the name '{name}' occurs twice; each value needs its own"
                names.add(name)
        if max(ends_of(self.members)) > SIZE_MAX:
            yield ("members",), f"a record has more than {SIZE_MAX:,} bytes"


def _first_and_count(bits: int | list[int]) -> tuple[int, int]:
    return (bits, 1) if isinstance(bits, int) else (bits[0], bits[1])


def ends_of(members: list[MemberSpec]) -> list[int]:
    """Return the index of the byte after each member."""
    ends: list[int] = []
    for one in members:
        start = one.at if one.at is not None else ends[-1] if ends else 0
        ends.append(start + one.width)
    return ends
