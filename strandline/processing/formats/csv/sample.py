"""Proposes the document of a stream from rows of values."""

from __future__ import annotations

import json
from typing import Any

from strandline.processing.formats.csv.rows_of_sample import CsvSample, read_csv, titles_of, untitled
from strandline.processing.formats.inference.field_types import is_beyond
from strandline.processing.formats.inference.sample import SAMPLE_RECORDS_MAX, Proposal, Proposed, Sample
from strandline.processing.formats.inference.schemas import Path, schema_of


def propose(name: str, sample: Sample) -> Proposed | None:
    """Return a document for the stream `name`, and the records of the sample. None if the sample isn't of this format."""
    found = None if sample.text is None else read_csv(sample.text, SAMPLE_RECORDS_MAX)
    return None if found is None else _of_csv(name, found)


def _of_csv(name: str, sample: CsvSample) -> Proposed:
    document: dict[str, Any] = {"stream": name, "format": "csv"}
    proposal = Proposal(document)
    rows, lines = sample.rows, sample.texts
    if len(lines) > len(rows):
        proposal.notes.append(
            f"rows with more or fewer than {len(rows[0])} values: {len(lines) - len(rows):,} of {len(lines):,}; they become dead "
            "letters"
        )
    if sample.comments:
        proposal.notes.append(
            f"comments (#) above the rows, which are not skipped when files are read: {sample.comments:,}; remove them: "
            f"tail -n +{sample.comments + 1} FILE"
        )
    titles = titles_of(rows)
    if titles is not None:
        rows, lines = rows[1:], lines[1:]
        proposal.notes.append("the first line contains the names of the columns; don't send it")
    else:
        proposal.notes.append("no line contains the names of the columns; choose better names")
    names = titles or [untitled(at) for at in range(len(rows[0]))]
    rows = [row for row in rows if not any(map(is_beyond, row))] or rows
    found: dict[Path, list[Any]] = {(key,): [row[at] for row in rows if row[at]] for at, key in enumerate(names)}
    for values in found.values():
        if 2 * sum(value.startswith(" ") for value in values) > len(values):
            shown = next(value for value in values if value.startswith(" "))
            proposal.notes.append(
                f"values begin with a blank, as {json.dumps(shown)}, which is a part of them; send them without it, or remove "
                "it with trim"
            )
            break
    empty: dict[Path, str] = {path: "string" for path, values in found.items() if not values}
    document["schema"] = schema_of(found, len(rows), proposal.notes, is_text=True, declared=empty)
    options: dict[str, Any] = {} if sample.delimiter == "," else {"delimiter": sample.delimiter}
    specs = [spec for spec in document["schema"].values() if isinstance(spec, dict)]
    if titles is not None and any("from" in spec for spec in specs):
        options["columns"] = titles
    else:
        for spec in specs:
            spec.pop("from", None)
    for name_of_field, spec in document["schema"].items():
        if isinstance(spec, dict) and set(spec) == {"type", "required"}:
            document["schema"][name_of_field] = f"{spec['type']}?"
    if options:
        document["csv"] = options
    return proposal, [line.encode() for line in lines]
