"""The sinks of a step: an entry of `emit` has one field for each sink of `results/sinks/registry.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, Field, create_model

from strandline.core.document_model import DocumentModel
from strandline.core.documents import Path
from strandline.results.index_settings import IndexSettings
from strandline.results.sinks.registry import SINKS, form_of
from strandline.results.sinks.sink import EmittedFields


class _Emission(DocumentModel):
    """One sink of a window's results."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})
    NOT_SUPPORTED: ClassVar[dict[str, str]] = {"kafka": "a topic of results is a stream: {stream: NAME}"}

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        given = [kind for kind in SINKS if getattr(self, kind) is not None]
        if len(given) != 1:
            yield (), f"expected exactly one of: {', '.join(SINKS)}"
        for kind in given:
            for path, message in form_of(kind).problems_of_document(getattr(self, kind)):
                yield (kind, *path), message

    @property
    def kind(self) -> str:
        """Name of the field, which is the kind of sink."""
        return next((kind for kind in SINKS if getattr(self, kind) is not None), next(iter(SINKS)))

    @property
    def value(self) -> Any:
        """Value of the field."""
        return getattr(self, self.kind)

    @property
    def name(self) -> str:
        """Name of the emission in its sink."""
        return form_of(self.kind).emission_name(self.value)

    @property
    def options(self) -> str:
        """Options of a sink of a package, as JSON."""
        return form_of(self.kind).options(self.value)

    @property
    def index_settings(self) -> IndexSettings:
        """Settings of the indices. Those of other sinks aren't used."""
        return form_of(self.kind).index_settings(self.value)

    def problems(self, emitted: EmittedFields, path: Path) -> Iterator[tuple[Path, str]]:
        """Yield problems of the emission, each with its path in the step. `path`: path of this entry."""
        return form_of(self.kind).problems(self.value, emitted, (*path, self.kind))


if TYPE_CHECKING:

    class EmitSpec(_Emission):
        """One entry of `emit`."""

else:
    _FIELDS = {
        kind: (form_of(kind).document() | None, Field(None, description=inspect.cleandoc(form_of(kind).description)))
        for kind in SINKS
    }
    EmitSpec = create_model("EmitSpec", __base__=_Emission, __module__=__name__, __doc__=_Emission.__doc__, **_FIELDS)
