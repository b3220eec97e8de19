"""Dataclasses that the REST API serves as they are."""

from __future__ import annotations

from typing import Any, ClassVar


class Described:
    """The base of a dataclass whose field docstrings also stand in the API's description (`docs/openapi.json`)."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}
