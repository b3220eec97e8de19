"""Base of the models of documents. Errors name the line, the error, and the expected value."""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails

from strandline.core.described import Described, docstrings_of
from strandline.core.documents import KINDS, Path, YamlDocument, did_you_mean
from strandline.core.errors import PROBLEMS_MAX, InvalidDocument

_IS_STORED = "is_stored"


def is_stored(info: ValidationInfo) -> bool:
    """Return True if the document was accepted before. Such a document stays readable if a package that it needs is missing."""
    return bool((info.context or {}).get(_IS_STORED))


class ContradictionError(ValueError):
    """Contradictions between the fields of one part of a document, each with its path from this part."""

    def __init__(self, found: list[tuple[Path, str]]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = found


class DocumentModel(Described, BaseModel):
    """A part of a document: immutable, without unknown fields, and without silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=False)
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {}
    """Fields that users expect and that don't exist: name -> message that says what to write instead."""

    @classmethod
    def parse(cls, document: YamlDocument, *, is_stored: bool = False) -> Self:
        """Return the model of `document`. Raises InvalidDocument with all problems, each with its line.

        Args: is_stored: True if the document was accepted before. See `is_stored`.
        """
        try:
            return cls.model_validate(document.data, context={_IS_STORED: is_stored})
        except ValidationError as error:
            found = (document.problem(*one) for detail in error.errors() for one in _problems(cls, detail))
            raise InvalidDocument(first_problems(found)) from error

    @classmethod
    def problems_in(cls, data: object) -> Iterator[tuple[Path, str]]:
        """Yield each problem of a part of a document: its path in the part, and a message."""
        try:
            cls.model_validate(data)
        except ValidationError as error:
            yield from (one for detail in error.errors() for one in _problems(cls, detail))

    @classmethod
    def from_document(cls, data: dict[str, object]) -> Self:
        """Return the model of a document that `as_document` returned. Raises InvalidDocument."""
        kind = next((kind for kind in KINDS if kind in data), "")
        name = str(data.get(kind, ""))
        source = f"<stored {kind} {name}>"
        return cls.parse(YamlDocument(kind=kind, name=name, data=data, source=source), is_stored=True)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        """Yield contradictions between fields that are valid on their own: the path from here, and a message."""
        return iter(())

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if found := first_problems(self.contradictions()):
            raise ContradictionError(found)
        return self

    def as_document(self) -> dict[str, object]:
        """Return the document with its defaults as plain JSON data. `from_document` reads it back as an equal model."""
        data: dict[str, object] = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return data


class OpenModel(DocumentModel):
    """A part of a document to which installed packages can add fields."""

    ADDED: ClassVar[tuple[str, ...]] = ()
    """Fields that packages have added."""
    MISSING: ClassVar[tuple[str, ...]] = ()
    """Fields of a stored document whose packages are missing or can't be used."""
    ROOT: ClassVar[type[OpenModel] | None] = None
    """Strandline's own model, if this model is extended. None if it isn't."""

    @classmethod
    def extended(cls) -> type[Self]:
        """Return the model with the fields of all installed packages: the model itself if there are none."""
        return cls if cls.ROOT is not None else cls.with_packages()

    @classmethod
    def with_packages(cls) -> type[Self]:
        """Return the model that `with_fields` makes for the installed packages, or the model itself if there are none."""
        raise NotImplementedError

    @classmethod
    def schema_extra(cls, added: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return additional entries for the JSON schema of the model with these fields of packages."""
        return {}

    @classmethod
    def with_fields(cls, bases: Sequence[type[DocumentModel]], refused: Mapping[str, str]) -> type[Self]:
        """Return the model with the fields of these models.

        `refused`: field of a package that can't be used -> the reason, with the remedy.
        """
        added = (*cls.ADDED, *(name for base in bases for name in base.model_fields))
        root = cls.ROOT or cls
        namespace: dict[str, Any] = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__reduce__": lambda one: (_restored, (root, added, one.__getstate__())),
            "ADDED": added,
            "ROOT": root,
            "NOT_SUPPORTED": {**cls.NOT_SUPPORTED, **refused},
            "model_config": ConfigDict(json_schema_extra=cls.schema_extra(added)),
        }
        # A model has the fields of its last base first.
        make: Any = type(cls)
        model: type[Self] = make(cls.__name__, (*reversed(bases), cls), namespace)
        return model

    @model_validator(mode="wrap")
    @classmethod
    def _read_extended(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        model = cls.extended()
        if is_stored(info) and isinstance(value, Mapping):
            model = model.with_missing(tuple(str(name) for name in value))
        if model is cls or isinstance(value, cls):
            return handler(value)
        return model.model_validate(value, context=info.context)

    @classmethod
    def with_missing(cls, names: Sequence[str]) -> type[Self]:
        """Return the model with fields of these names, which accept every value. So an accepted document stays readable if a
        package is missing. Only the parts that need the package fail."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        missing = [name for name in names if name not in known]
        definitions: list[dict[str, Any]] = [{name: (Any, None)} for name in missing]
        fields = [create_model("Missing", __base__=DocumentModel, **one) for one in definitions]
        if not fields:
            return cls
        model = cls.with_fields(fields, {})
        model.MISSING = tuple(missing)
        return model


def _restored(model: type[OpenModel], added: tuple[str, ...], state: dict[Any, Any]) -> OpenModel:
    """Return an instance that was pickled: the extended model has no name of its own."""
    extended = model.extended().with_missing(added)
    restored = extended.__new__(extended)
    restored.__setstate__(state)
    return restored


def first_problems(found: Iterable[Any]) -> list[Any]:
    """Return the problems that one response can contain, and one more as a sign that there are more."""
    return list(itertools.islice(found, PROBLEMS_MAX + 1))


_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "bool_type": "true or false",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of names to values",
    "list_type": "a list",
}
WORD, MAPPING = "[word]", "[mapping]"
"""Tags of a field that is a word or a mapping. Pydantic's errors contain them as a part of the path."""
_NO_PLACES = ("[key]", WORD, MAPPING)


def word_or_mapping(value: object) -> str:
    """Return the tag of a value."""
    return WORD if isinstance(value, str) else MAPPING


def _problems(model: type[DocumentModel], detail: ErrorDetails) -> list[tuple[Path, str]]:
    path = tuple(part for part in detail["loc"] if part not in _NO_PLACES)
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, ContradictionError):
        return [((*path, *inner), message) for inner, message in error.found]
    return [(path, str(error) if error else _message(model, path, detail))]


def _message(model: type[DocumentModel], path: Path, detail: ErrorDetails) -> str:
    """Return the message for an error of pydantic: the expected value and the actual value."""
    kind, value = detail["type"], detail["input"]
    owner = _model_at(model, path[:-1]) if path else None
    if kind == "missing":
        name = next((n for n, f in owner.model_fields.items() if (f.alias or n) == path[-1]), None) if owner else None
        docstring = docstrings_of(owner).get(name) if owner and name else None
        return f"is missing; expected: {docstring}" if docstring else "is missing"
    if kind == "extra_forbidden" and owner:
        if message := owner.NOT_SUPPORTED.get(str(path[-1])):
            return message
        known = [field.alias or name for name, field in owner.model_fields.items()]
        return f"unknown field '{path[-1]}'{did_you_mean(str(path[-1]), known)}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {shown(value)}{_remedy(model, path, kind, value)}"
    if kind == "too_short":
        return f"expected at least one entry, got {shown(value)}"
    if kind == "too_long":
        return f"expected at most {detail['ctx']['max_length']:,} entries, got {shown(value)}"
    if kind == "literal_error":
        return f"expected {detail['ctx']['expected']}{_or_mapping(model, path)}, got {shown(value)}"
    return f"{detail['msg'].replace('Input should', 'should')}, got {shown(value)}"


def _remedy(model: type[DocumentModel], path: Path, kind: str, value: object) -> str:
    """Return how to write the value, if the intention is clear."""
    if kind == "list_type":
        return f"; write [{value}]" if isinstance(value, str) else "; write it between [ and ]" if value else ""
    if kind == "model_type" and isinstance(value, str) and (meant := _model_at(model, path)):
        name, field = next(iter(meant.model_fields.items()))
        return f"; write {{{field.alias or name}: {value}}}"
    return ""


def _or_mapping(model: type[DocumentModel], path: Path) -> str:
    """Return the form of the mapping, if the field is a word or a mapping."""
    meant = _model_at(model, path)
    return f", or {{{next(iter(meant.model_fields))}: ...}}" if meant else ""


def shown(value: object) -> str:
    match value:
        case None:
            return "no value"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case _:
            text = repr(value)
            return text if len(text) <= 60 else f"{text[:57]}..."


def _model_at(model: type[DocumentModel], path: Path) -> type[DocumentModel] | None:
    """Return the model of the value at `path`, according to the annotations."""
    here: Any = model
    for part in path:
        here = here.extended() if isinstance(here, type) and issubclass(here, OpenModel) else here
        if isinstance(here, type) and issubclass(here, DocumentModel):
            here = next((f.annotation for n, f in here.model_fields.items() if (f.alias or n) == part), None)
        else:  # an index of a list, or a key of a dict
            here = typing.get_args(here)[-1] if typing.get_args(here) else None
        while typing.get_origin(here) in (Annotated, typing.Union, types.UnionType):
            of_union = [one for one in typing.get_args(here) if one is not types.NoneType]
            here = of_union[0 if typing.get_origin(here) is Annotated else -1]
    if isinstance(here, type) and issubclass(here, OpenModel):
        return here.extended()
    return here if isinstance(here, type) and issubclass(here, DocumentModel) else None
