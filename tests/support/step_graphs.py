"""Random pipelines with branches over the records of `tests.property.test_window_operator`, and what each branch is as a job of
its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from strandline.processing.pipelines.model.pipeline import PipelineSpec

Steps = list[dict[str, Any]]

BEHIND_RECORDS: Steps = [
    {"derive": {"load": "power / count"}},
    {"derive": {"half": "count / 2"}},
    {"where": "count > 0"},
    {"where": "site = 'north'"},
    {"where": "10 / (count + 1) < 5"},
]
BEHIND_WINDOWS: Steps = [
    {"derive": {"each": "power / (n - 1)"}},
    {"derive": {"part": "power / (n - 2)"}},
    {"where": "n > 1"},
    {"where": "10 / (n - 3) < 5"},
]


def document_of(steps: Sequence[dict[str, Any]], stream: str = "machines") -> dict[str, Any]:
    return {
        "pipeline": "health",
        "input": {"stream": stream},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "steps": list(steps),
    }


class SomeGraph:
    """Draws a graph: from each step, or from the stream, others may take."""

    def __init__(self, random: Random, stream: str = "machines") -> None:
        self._random = random
        self.steps: Steps = []
        self._names = [stream]
        self._by: dict[str, list[str]] = {stream: ["machine", "site"]}
        self._every_s = {stream: 5}
        self._behind: dict[str, list[dict[str, Any]]] = {stream: BEHIND_RECORDS}
        self._open: set[str] = set()
        for _ in range(random.randint(2, 7)):
            self._add(random.choice(self._names))
        for name in sorted(self._open):
            self._window(name)

    def _add(self, source: str) -> None:
        left = self._behind[source]
        if left and self._random.random() < 0.4:
            step = self._random.choice(left)
            name = self._named(source)
            self._take({**step, "name": name}, source)
            self._behind[name] = [one for one in left if one is not step]
            self._open.add(name)
            if left is BEHIND_RECORDS and self._random.random() < 0.3:
                self._emit(name)
        else:
            self._window(source)

    def _window(self, source: str) -> None:
        random = self._random
        is_first = source == self._names[0] or source.startswith("r")
        name = self._named(source, is_window=True)
        by = random.sample(self._by[source], random.randint(0, len(self._by[source])))
        self._by[name] = by
        self._every_s[name] = self._every_s[source] * random.choice([1, 2, 3])
        shape: dict[str, Any] = {"tumbling": f"{self._every_s[name]}s"}
        kind = random.random()
        if kind < 0.2:
            shape = {"session": {"gap": f"{self._every_s[name] + 1}s", "max": f"{3 * self._every_s[name] + 3}s"}}
        elif kind < 0.3:
            every_s = self._every_s[name]
            shape = {"cumulative": {"size": f"{3 * every_s}s", "step": f"{every_s}s"}}
        elif kind < 0.4:
            shape = {"sliding": {"size": f"{2 * self._every_s[name]}s", "every": f"{self._every_s[name]}s"}}
        aggregate = {"n": "count(*)" if is_first else "sum(n)", "power": "sum(power)"}
        aggregate |= (
            {"one": "first(power)", "other": "last(power)"}
            if is_first
            else {"one": "first(one)", "other": "last(other)"}
        )
        step = {"window": {"name": name, **shape, "by": by, "aggregate": aggregate}}
        self._behind[name] = BEHIND_WINDOWS
        behind = random.random()
        if behind < 0.6:
            self._take({**step, "emit": [{"elasticsearch": name}]}, source)
            return
        self._take(step, source)
        further = self._named(name)
        self._behind[further] = []
        self._take({**random.choice(BEHIND_WINDOWS), "name": further}, name)
        self._take({"emit": [{"elasticsearch": name}]}, further)
        self._open.discard(further)
        if behind < 0.8:  # behind the emission, which has no name
            last = f"w{len(self.steps)}"
            every_s = self._every_s[name] * 2
            window = {
                "name": last,
                "tumbling": f"{every_s}s",
                "by": by[:1],
                "aggregate": {"n": "sum(n)", "other": "last(other)"},
            }
            self.steps.append({"window": window, "emit": [{"elasticsearch": last}]})

    def _emit(self, source: str) -> None:
        name = f"e{len(self.steps)}"
        self._take({"emit": [{"elasticsearch": name}], "name": name}, source)

    def _take(self, step: dict[str, Any], source: str) -> None:
        last = self.steps[-1] if self.steps else {}
        names = (last.get("name"), last.get("window", {}).get("name")) if last else (self._names[0],)
        self.steps.append(step if source in names and self._random.random() < 0.5 else {**step, "from": source})
        self._open.discard(source)

    def _named(self, source: str, *, is_window: bool = False) -> str:
        is_of_window = source.startswith(("w", "d"))
        name = ("w" if is_window else "d" if is_of_window else "r") + str(len(self.steps))
        self._names.append(name)
        self._by[name], self._every_s[name] = self._by[source], self._every_s[source]
        return name


def some_graph(random: Random, stream: str = "machines") -> Steps:
    """The steps of a pipeline with branches, or by chance of one without."""
    return SomeGraph(random, stream).steps


def single_jobs(steps: Steps, stream: str = "machines") -> Iterator[tuple[str, Steps]]:
    """For each window and each emission: the stage, and the steps of a job of its own, without `name` and `from`, that ends
    there."""
    spec = PipelineSpec.from_document(document_of(steps, stream))
    sources, records = spec.sources, {name for name in spec.stage_names() if name.startswith("e")}
    for last in range(len(steps)):
        if "window" not in steps[last] and "emit" not in steps[last]:
            continue
        way, at = list[dict[str, Any]](), last
        while at >= 0:
            step = {name: value for name, value in steps[at].items() if name != "from"}
            if step.get("name") not in records:
                step.pop("name", None)
            way.insert(0, step)
            at = sources[at][0]
        stage = next(
            (step["window"]["name"] for step in reversed(way) if "window" in step), steps[last].get("name", "")
        )
        if "emit" not in way[-1]:
            continue
        yield stage, way
