"""The contract of a step whose results are those of a stage: a window, or a join."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FieldName
from strandline.core.documents import Path
from strandline.processing.pipelines.stages import Stage

HAVING = "a condition on results is a step after the window: 'where: CONDITION'"


class StageSpec(DocumentModel):
    """A stage in a document."""

    name: FieldName
    """Name of the stage in results, status and dead letters."""

    @property
    def sides(self) -> list[tuple[Path, str]]:
        """(path of the field, name of the step or stream) of each input, if the fields of the stage name them. Empty if `from`
        of the step names the input."""
        return []

    @property
    def result_fields(self) -> list[tuple[str, Path]]:
        """Each field of a result, and its path in the stage."""
        raise NotImplementedError

    def problems_after(self, stage: Stage, before: Stage) -> Iterator[tuple[Path, str]]:
        """Yield problems of this stage, because it reads the results of the stage `before`: the path in the stage, and a message.

        `stage`: this stage, when it is checked.
        """
        return iter(())
