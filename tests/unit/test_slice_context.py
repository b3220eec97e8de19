"""What the driver publishes about a slice is what its tasks read."""

from __future__ import annotations

from typing import Any

from strandline.processing.emission.slice_context import SliceContext, publish, read
from tests.support.ledgers import a_checkpoint


class Properties:
    """Stands for Spark's driver and for its tasks."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def setLocalProperty(self, name: str, text: str) -> None:
        self._texts[name] = text

    def getLocalProperty(self, name: str) -> str | None:
        return self._texts.get(name)


def test_a_task_reads_what_the_driver_published_last() -> None:
    properties: Any = Properties()
    context = SliceContext(7, {0: 3, 11: 4}, {"minutes": {0: 12}})
    publish(properties, SliceContext.after(None, 1))
    assert read(properties) == SliceContext(1, {}, {})
    publish(properties, context)
    assert read(properties) == context


def test_a_slice_goes_on_where_the_checkpoint_before_it_ended() -> None:
    before = a_checkpoint(3)
    assert SliceContext.after(before, 4) == SliceContext(4, before.dead_letter_offsets, before.result_offsets)
