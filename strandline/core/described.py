"""Docstrings of fields, for the description of the API (`docs/openapi.json`), the schema of documents, and messages."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Spark tasks load dataclasses that are described here, but not pydantic
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Described:
    """Base of a model or dataclass whose JSON schema contains the docstrings of its fields. The docstrings are read from the
    source when a schema is made. Pydantic's `use_attribute_docstrings` reads them when the class is made. This takes long, and
    happens at the start of every process."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        fields = getattr(cls, "__pydantic_fields__", {})
        for name, docstring in docstrings_of(cls).items():
            shown = properties.get(name) or properties.get(getattr(fields.get(name), "alias", None))
            if shown is not None:
                shown.setdefault("description", docstring)
        return schema


def docstrings_of(cls: type) -> dict[str, str]:
    """Return the docstrings of the annotated fields of a class, also of inherited fields, by name. Fields without one are left
    out."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        own = _docstrings_in(base.__module__).get(base.__qualname__, {}) if issubclass(base, Described) else {}
        for name in vars(base).get("__annotations__", ()):
            found.pop(name, None)  # a field that is declared again, without a docstring, has none
            if name in own:
                found[name] = own[name]
    return found


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> docstring, for the classes of a module."""
    found: dict[str, dict[str, str]] = {}
    _collect(ast.parse(inspect.getsource(sys.modules[module])), "", found)
    return found


def _collect(node: ast.AST, prefix: str, found: dict[str, dict[str, str]]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            name = f"{prefix}{child.name}"
            found[name] = {
                field.target.id: inspect.cleandoc(after.value.value)
                for field, after in zip(child.body, child.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            }
            _collect(child, f"{name}.", found)
