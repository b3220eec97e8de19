"""Words for `enrich` in the graph of a pipeline."""

from __future__ import annotations

from strandline.processing.kinds.enrich.step import Enrich


def describe(step: Enrich) -> str:
    by = ", ".join(field if field == name else f"{field}: {name}" for field, name in step.key)
    added = ", ".join(
        column.name if column.name == column.sql else f"{column.name}: {column.sql}" for column in step.columns
    )
    return f"enrich {added} from {step.lookup} by {by}{' (optional)' if step.optional else ''}"
