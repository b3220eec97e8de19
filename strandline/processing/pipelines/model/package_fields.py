"""The fields that the kinds of installed packages add to documents."""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeVar

from strandline.core.document_model import DocumentModel, OpenModel
from strandline.core.errors import FunctionUnusable
from strandline.processing.pipelines.kind_registry import package_kinds, part_of

M = TypeVar("M", bound=OpenModel)


@cache
def with_package_fields(model: type[M], fields: Literal["Fields", "WindowFields"]) -> type[M]:
    """Return the model with the fields of all kinds whose `document` has such a class. For a kind that can't be used, the field
    contains the reason. A document with this field is refused; other documents aren't."""
    found: list[type[DocumentModel]] = []
    refused: dict[str, str] = {}
    for name, part in package_kinds().items():
        try:
            document = part_of(name, "document")
            added = getattr(document, fields, None)
            if added is not None:
                found.append(_checked(name, part.package, added))
        except FunctionUnusable as error:
            refused[name] = str(error)
    return model.with_fields(found, refused) if found or refused else model


def _checked(name: str, package: str, added: object) -> type[DocumentModel]:
    """Return the class if its only field has the name of the kind. Raises FunctionUnusable."""
    if isinstance(added, type) and issubclass(added, DocumentModel) and [*added.model_fields] == [name]:
        return added
    raise FunctionUnusable(
        f"the kind {name} of {package} has other fields than {name} in its document; install a release of the package whose only "
        f"field is {name}"
    )
