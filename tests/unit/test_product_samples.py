"""Proposals for messages of real products, written from their public documentation: docs/devices.md.

For each product, the proposal is accepted, runs, keeps all readings, and has the types of the documentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.processing.formats.timestamps import PER_SECOND, parse_timestamp
from tests.support.products.product import Product
from tests.support.products.table import AREAS, PRODUCTS
from tests.support.proposals import Tried, try_proposal

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"


@pytest.mark.guarantee(
    "G946",
    "For each product in docs/devices.md, `stream infer` proposes a document that accepts all its messages, keeps each reading, "
    "and has the types of the product's documentation.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_proposal_for_a_product_keeps_all_readings_with_the_documented_types(name: str, tmp_path: Path) -> None:
    product = PRODUCTS[name]
    tried = try_proposal(product.sample, tmp_path, suffix=".csv" if product.format == "csv" else ".ndjson")
    document = tried.proposal.document
    assert (document["format"], document.get("explode")) == (product.format, product.explode)
    found = {name: kind_of(spec) for name, spec in document["schema"].items()}
    assert {name: found.get(name) for name in product.types} == product.types
    assert (len(tried.results), tried.letters, tried.proposal.rejected) == (product.rows, [], [])
    assert lost_values(product, tried) == {}


@pytest.mark.parametrize("path", ["$.value", "$.unit"])
def test_a_value_that_is_in_no_row_is_found(path: str, tmp_path: Path) -> None:
    product = Product([{"at": "2026-10-05T06:00:00Z", "value": 5.5, "unit": "bar"}], 1, {})
    tried = try_proposal(product.sample, tmp_path)
    assert lost_values(product, tried) == {}
    (row,) = tried.results
    del row[path[2:]]
    assert set(lost_values(product, tried)) == {path}


def test_the_page_lists_the_products_by_area() -> None:
    listed: dict[str, dict[str, str]] = {}
    area: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            area = listed.setdefault(line[3:], {})
        if (
            row := re.fullmatch(r"\| \[(?P<name>[^]]+)\]\(https?://[^ ]+\) \| [^|]+ \| (?P<document>.+) \|", line)
        ) is not None:
            area[row["name"]] = row["document"]
    named = {area: set(products) for area, products in listed.items() if products}
    assert named == {area: set(products) for area, products in AREAS.items()}
    for name, product in PRODUCTS.items():
        (written,) = (products[name] for products in listed.values() if name in products)
        assert written == document_text(product), name


def kind_of(spec: Any) -> str:
    """Return the type of a field."""
    return str(spec if isinstance(spec, str) else spec["type"]).rstrip("?")


def document_text(product: Product) -> str:
    """Return the part of the document that the page names."""
    form, explode = product.format, product.explode
    if form != "json":
        return f"`format: {form}`"
    if explode is None:
        return "one row"
    if isinstance(explode, str):
        return f"`explode: {explode}`"
    parts = [f"{key}: {json.dumps(value) if key == 'match' else value}" for key, value in explode.items()]
    return f"`explode: {{{', '.join(parts)}}}`"


def lost_values(product: Product, tried: Tried) -> dict[str, Any]:
    """Return path -> a value of the messages that is in no row. Times are compared as times, and not if they have a pattern."""
    document = tried.proposal.document
    specs = {name: spec for name, spec in document["schema"].items() if isinstance(spec, dict)}
    patterned = {spec.get("from", f"$.{name}") for name, spec in specs.items() if "pattern" in spec}
    rows = [value for row in tried.results for value in row.values()]
    times = {parse_timestamp(value, "ms") for value in rows if isinstance(value, str)} - {None}
    known = {str(value) for value in rows} | {float(value) for value in rows if is_number(value)}
    return {
        path: value
        for record in product.records
        if isinstance(record, dict | list)
        for path, value in values_in(record, "$", opened=document.get("embedded", []))
        if path not in patterned
        and not any(path.startswith(left_out) for left_out in product.left_out)
        and not (str(value) in known or json.dumps(value) in known)
        and not (is_number(value) and (float(value) in known or as_times(float(value)) & times))
        and not (isinstance(value, str) and in_text(value, known, times))
    }


def values_in(value: Any, path: str, opened: list[dict[str, str]]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each single value that isn't null or empty. Strings that the document opens have none."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from values_in(inner, f"{path}.{name}", opened)
    elif isinstance(value, list):
        for inner in value:
            yield from values_in(inner, path, opened)
    elif value not in (None, "") and not any(one["at"] == path for one in opened):
        yield path, value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_times(number: float) -> set[int]:
    """Return the times that an epoch can be, in microseconds."""
    return {round(number / per_second * 1_000_000) for per_second in PER_SECOND.values()}


def in_text(text: str, known: set[Any], times: set[Any]) -> bool:
    """Return True if a string is in a row, also as a number, a boolean, or a time."""
    try:
        number = float(text)
    except ValueError:
        return text in known or text.capitalize() in known or parse_timestamp(text.removesuffix(" UTC"), "ms") in times
    return text in known or number in known or bool(as_times(number) & times)
