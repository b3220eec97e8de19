"""Joins of windows' results: the same to the last bit in other slices, buckets and chunks, and behind a rewind; and against an
oracle in plain Python, which joins the results that the windows emit."""

from __future__ import annotations

from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.property.test_branches import checked
from tests.property.test_joins import History
from tests.property.test_rewind_windows import require_the_rest
from tests.property.test_window_operator import END, digest, histories, run
from tests.support.examples import examples
from tests.support.result_join_graphs import some_result_join


@examples(40)
@given(histories(), st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 7))
def test_they_do_not_depend_on_slices_buckets_or_chunks(
    history: History, seed: int, buckets: int, chunk_rows: int
) -> None:
    pipeline = checked(some_result_join(Random(seed)))
    at_once = run(pipeline, [([row for rows, _ in history for row in rows], END)], 1, 10**6)
    assert digest(run(pipeline, history, buckets, chunk_rows)) == digest(at_once)


@examples(40)
@given(histories(), st.integers(0, 2**32), st.none() | st.integers(0, 2**32), st.data())
def test_a_rewind_computes_just_what_is_not_emitted(
    history: History, seed: int, new_seed: int | None, data: st.DataObject
) -> None:
    """Also by a version with another join under the same name."""
    assume(len(history) > 1)
    old = checked(some_result_join(Random(seed)))
    new = old if new_seed is None else checked(some_result_join(Random(new_seed)))
    number = data.draw(st.integers(1, len(history) - 1), label="the last committed slice")
    require_the_rest(history, old, new, number)
