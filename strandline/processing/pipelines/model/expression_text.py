"""A field of a document that is an expression."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema


def _expression_text(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        shown = "no value" if value is None else repr(value)
        raise ValueError(f"expected an expression as text, got {shown}")
    return value


ExpressionText = Annotated[str, BeforeValidator(_expression_text), WithJsonSchema({"type": "string", "minLength": 1})]
"""An expression of Spark SQL, as written."""
