"""Ids keep apart what differs and bring together what is equal, and a document says what its row said."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from strandline.results.document import Document, DocumentShape, KeyValue, document_id
from tests.support.stage_batches import stage_batch

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WORDS = st.text(max_size=8) | st.text(alphabet="0123456789:sinbfdt-", max_size=8)
LONGS = st.integers(-(2**63), 2**63 - 1)
VALUES: st.SearchStrategy[KeyValue] = (
    st.none()
    | st.booleans()
    | LONGS
    | st.integers(-2, 2)
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.datetimes(timezones=st.just(UTC))
    | WORDS
)
IDENTITIES = st.tuples(WORDS, WORDS, LONGS, LONGS, st.lists(VALUES, max_size=3).map(tuple))


def comparable(value: KeyValue) -> tuple[str, KeyValue]:
    """Python takes 1 == 1.0 == True == Decimal(1); a document's key doesn't."""
    return type(value).__name__, value


@given(IDENTITIES, IDENTITIES)
def test_two_ids_are_equal_exactly_when_their_parts_are(
    one: tuple[str, str, int, int, tuple[KeyValue, ...]], other: tuple[str, str, int, int, tuple[KeyValue, ...]]
) -> None:
    same = one[:4] == other[:4] and list(map(comparable, one[4])) == list(map(comparable, other[4]))
    assert (document_id(*one) == document_id(*other)) is same


@given(st.lists(VALUES, min_size=1, max_size=3), st.integers(0, 2), VALUES)
def test_changing_one_key_value_changes_the_id(key: list[KeyValue], place: int, value: KeyValue) -> None:
    changed = list(key)
    changed[place % len(key)] = value
    same = list(map(comparable, key)) == list(map(comparable, changed))
    assert (document_id("j", "s", 0, 1, tuple(key)) == document_id("j", "s", 0, 1, tuple(changed))) is same


@given(st.lists(WORDS, min_size=1, max_size=4), st.data())
def test_moving_a_boundary_between_parts_changes_the_id(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    cut, other = (data.draw(st.integers(0, len(text))) for _ in range(2))
    one = document_id(text[:cut], text[cut:], 0, 1, ())
    assert (one == document_id(text[:other], text[other:], 0, 1, ())) is (cut == other)


@given(st.lists(st.tuples(WORDS | st.none(), LONGS | st.none(), st.floats(), st.integers(0, 10**15)), max_size=20))
def test_every_row_has_its_document_or_its_refusal_in_place(
    rows: list[tuple[str | None, int | None, float, int]],
) -> None:
    shape = DocumentShape("emit", "j", "s", 1, (("k", "string"),), (("n", "long"), ("x", "double"), ("t", "timestamp")))
    batch = stage_batch(shape.fields, rows)
    documents = list(shape.documents(batch, 1, 1))
    assert len(documents) == len(rows)
    for document, (k, n, x, t) in zip(documents, rows, strict=True):
        content = json.loads(document.source)
        assert isinstance(document, Document) is math.isfinite(x)
        assert (content["k"], content["n"]) == (k, n)
        assert content["x"] == (x if math.isfinite(x) else str(x))
        assert (datetime.fromisoformat(content["t"]) - EPOCH) // timedelta(microseconds=1) == t
    again = list(shape.documents(batch.slice(0), 2, 7))
    assert [document.id for document in again] == [document.id for document in documents]
