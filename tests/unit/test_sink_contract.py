"""`check_sink` finds the mistakes that authors of sinks make. `tests/plugins/acme_wrong_sinks` has one sink for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import Divergence
from strandline.results.sinks.contract import check_sink, record_shape, window_shape
from tests.support.plugins import PLUGINS

MISTAKES = {
    "KeepsAConnection": "doesn't pickle",
    "PreparesOnce": "FileExistsError",
    "EmptiesOnPrepare": "readers miss",
    "Appends": "already=0",
    "Overwrites": "must raise Divergence",
    "KeepsTheFirst": "must raise Divergence",
    "OverwritesAndDiverges": "the value was changed by a Divergence",
    "ComparesTheFirstRow": "another value in one of 250 rows must raise Divergence",
    "ComparesTheRun": "another version of the job can't write equal results again",
    "CountsAllAsCreated": "already=0",
    "CountsStoredTwice": "stored counts",
    "CountsRefusedAsCreated": "must be in `refused`",
    "DropsRefused": "must be in `refused`",
    "NamesNoSink": "`index` of a refused row must be memory:",
    "WritesTheFirstBatch": "of 39 rows",
    "StopsAtAnEmptyBatch": "of 39 rows",
    "WritesOnePage": "after a batch of 1200 rows: readers miss 200",
    "LosesNulls": "n = 0, where the sink has None",
    "LosesTexts": "note = '', where the sink has None",
    "RoundsIntegers": "n = 9007199254740992, where the sink has 9007199254740993",
    "RoundsDecimals": "total = ",
    "RoundsDoubles": "load = ",
    "RoundsTimes": "seen = ",
    "IgnoresCase": "note = 'A', where the sink has 'a'",
    "StoresTextOnly": "is_on of",
    "RaisesItsOwnError": "raise SinkUnavailable, so that the run waits",
    "SwallowsAnOutage": "write_batches returns while the server doesn't respond",
    "PreparesWithoutAServer": "prepare returns while the server doesn't respond",
    "WritesOneIdForAllRuns": "`is_once` is false",
    "LosesParallelRows": "after four tasks have written at the same time: readers miss",
    "CommitsTwice": "too many, or twice",
    "CommitsAsItWrites": "too many, or twice",
}
_NUMBERS = count()


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(PLUGINS / "acme_wrong_sinks")
    from acme_wrong_sinks import memory, mistakes

    yield memory, mistakes
    memory.STORES.clear()
    for module in [name for name in sys.modules if name.startswith("acme_wrong_sinks")]:
        del sys.modules[module]


@pytest.mark.guarantee(
    "G983",
    "The contract suite of sinks accepts a correct sink of a package, and names each of 32 planted mistakes. They lose, repeat, "
    "round, or overwrite rows, count them wrongly, or don't report an outage.",
    promise="each-sink-contains-each-result-once",
)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_suite_finds_a_mistake(toys: Any, mistake: str) -> None:
    memory, mistakes = toys
    sink = memory.MemorySink(f"{mistake}-{next(_NUMBERS)}", getattr(mistakes, mistake))
    with pytest.raises((AssertionError, FileExistsError, Divergence)) as raised:
        check_sink(sink, window_shape(sink))
    assert MISTAKES[mistake] in f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.guarantee("G983")
@pytest.mark.parametrize("shape_of", [window_shape, record_shape])
@pytest.mark.parametrize("writer", ["MemoryWriter", "PartsWriter"])
def test_a_sink_without_a_mistake_passes(toys: Any, shape_of: Any, writer: str) -> None:
    memory, mistakes = toys
    sink = memory.MemorySink(f"right-{next(_NUMBERS)}", getattr(mistakes, writer))
    check_sink(sink, shape_of(sink))


def test_each_planted_mistake_is_in_the_list(toys: Any) -> None:
    _, mistakes = toys
    planted = {
        name
        for name, one in vars(mistakes).items()
        if isinstance(one, type) and one.__module__ == mistakes.__name__ and one.__doc__ != mistakes.PartsWriter.__doc__
    }
    assert {name for name in planted if not name.startswith("_")} == set(MISTAKES)
    assert Path(mistakes.__file__).is_relative_to(PLUGINS)
