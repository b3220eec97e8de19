"""The docstrings of fields: in JSON schemas and in messages, read when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from strandline.core.described import Described, docstrings_of


class Base(Described, BaseModel):
    first: int
    """The first,
    in two lines."""
    second: int = 2
    """The second."""


class Derived(Base):
    second: int = 3
    third: int = Field(default=4, alias="3rd")
    """The third."""


@dataclass(frozen=True)
class Plain(Described):
    value: int
    """A value."""
    silent: int


def test_docstrings_are_inherited_and_end_with_a_new_declaration() -> None:
    assert docstrings_of(Derived) == {"first": "The first,\nin two lines.", "third": "The third."}


def test_schemas_have_the_docstrings() -> None:
    derived: dict[str, Any] = Derived.model_json_schema()["properties"]
    assert {name: field.get("description") for name, field in derived.items()} == {
        "first": "The first,\nin two lines.",
        "second": None,
        "3rd": "The third.",
    }
    plain: dict[str, Any] = TypeAdapter(Plain).json_schema()["properties"]
    assert {name: field.get("description") for name, field in plain.items()} == {"value": "A value.", "silent": None}
