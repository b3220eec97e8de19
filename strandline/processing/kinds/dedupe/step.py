"""A step that leaves out duplicates."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.processing.pipelines.row_step import DuplicateFilter, Identity


@dataclass(frozen=True)
class Dedupe(DuplicateFilter):
    """Leaves out duplicates: within a time, or in a whole batch (`distinct`)."""

    kind = "dedupe"
    keyword = "dedupe"

    @property
    def path(self) -> str:
        return f"steps[{self.number}].{'distinct' if self.compares_all else self.keyword}"

    @property
    def identity(self) -> Identity:
        return {"dedupe": list(self.by), "within_ms": self.within_ms}
