"""Whole pipelines drawn at random, of all kinds of steps, each with what it means for `tests.support.oracle`; and their logs."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from strandline.processing.pipelines.kind_registry import WINDOW_KEYWORDS
from tests.support import oracle
from tests.support.oracle import Applied, EventTimes, Followed, Sent, Step
from tests.support.some_expressions import (
    AGGREGATES,
    ALWAYS,
    BEHIND,
    COMPARISONS,
    CONDITIONS,
    DERIVED,
    LATER,
    TYPES_OF_AGGREGATES,
)
from tests.support.some_lookups import LOOKUPS, some_changes

START_MS = 1_700_000_000_000
DAYS_MS = (1_698_440_400_000, 1_711_746_000_000)
"""Before nights in which clocks in Berlin are set: 27 October 2023 and 29 March 2024, 21:00 UTC."""
SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "machine": "string",
        "site": "string?",
        "ts": {"type": "timestamp", "unit": "ms"},
        "kind": "string",
        "power": "double?",
        "noise": "double",
        "count": "long?",
        "tags": "array<long>?",
    },
    {
        "machine": "string",
        "site": "string?",
        "at": {"type": "timestamp", "unit": "ms"},
        "kind": "string",
        "power": "double?",
        "noise": "double",
    },
)
TIMES = ("ts", "at")
STREAMS = ("machines", "others")
KEYS = ("machine", "site", "kind", "count", "owner", "grade", "team")
"""What windows may group by."""
FUNCTIONS = """
import pyarrow as pa

FACTORS = {"a": 0.5, "b": 2.0}


def weighed(batch):
    \"\"\"Raises a KeyError for a kind that has no factor.\"\"\"
    rows = zip(batch.column("kind").to_pylist(), batch.column("power").to_pylist())
    weights = [None if power is None else power * FACTORS[kind] for kind, power in rows]
    texts = [None if weight is None or weight < 0 else "heavy" if weight > 10 else "light" for weight in weights]
    return pa.RecordBatch.from_arrays([pa.array(weights, pa.float64()), pa.array(texts, pa.string())], ["weight", "class"])
"""
"""The module of a package that pipelines call functions of."""
FUNCTION = {
    "function": "acme_quality:weighed",
    "reads": ["kind", "power"],
    "columns": {"weight": "double", "class": "string?"},
    "deterministic": True,
}


def weighed(kind: str, power: float | None) -> dict[str, Any] | None:
    """Return the result of the function."""
    if power is None:
        return {"weight": None, "class": None}
    if (factor := {"a": 0.5, "b": 2.0}.get(kind)) is None:
        return None
    weight = power * factor
    return {"weight": weight, "class": None if weight < 0 else "heavy" if weight > 10 else "light"}


@dataclass(frozen=True)
class Relation:
    """Input of a step."""

    at: int
    """The step, or the stream: -1 and below."""
    name: str
    columns: tuple[str, ...]
    streams: frozenset[int]
    has_repeats_left_out: bool = False
    every_s: int | None = None
    """For results: their windows end at multiples of it. None for records."""
    derived: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()
    """Columns by which results can be grouped."""
    is_anywhere: bool = False
    """Whether results end anywhere: those of sessions and of interval joins."""


class SomePipeline:
    """Draws a document and, step by step, what it means."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.streams = STREAMS[: random.choice([1, 1, 2])]
        self.steps: list[Step] = []
        self._relations = [
            Relation(-1 - at, name, tuple(SCHEMAS[at]), frozenset([at])) for at, name in enumerate(self.streams)
        ]
        self._open: set[str] = set()
        self._stages = 0
        self._has_join = random.random() < 0.35
        self._has_dedupe = not self._has_join and random.random() < 0.45
        self.delays_s = [random.choice([0, 2, 10]) for _ in self.streams]
        self.idle_s = random.choice([None, 20, 60]) if len(self.streams) == 1 else None
        self.partitions = random.choice([1, 3])
        self.revise_s = random.choice([1, 5, 60]) if random.random() < 0.1 else None
        """Time after the watermark for which records revise results. Such a pipeline has one window, and no step after
        it."""
        self.has_days = False
        """Whether a window is of days, so that the log should be of some."""
        self.lookups: dict[str, bool] = {}
        """Used lookups, and True if they change while records arrive."""
        self._draw()

    @property
    def times(self) -> list[EventTimes]:
        return [
            EventTimes(delay_s * 1000, None if self.idle_s is None else self.idle_s * 1000) for delay_s in self.delays_s
        ]

    def document(self) -> dict[str, Any]:
        """Return the document as YAML would define it."""
        idle = None if self.idle_s is None else f"{self.idle_s}s"
        bounds = {"idle_timeout": idle, "max_ahead": None}
        reads = [
            {"stream": name, "event_time": {"field": TIMES[at], "delay": f"{self.delays_s[at]}s", **bounds}}
            for at, name in enumerate(self.streams)
        ]
        if len(reads) > 1:
            said: dict[str, Any] = {"inputs": reads}
        else:
            said = {"input": {"stream": self.streams[0]}, "event_time": reads[0]["event_time"]}
        if self.revise_s is not None:
            said["late"] = {"revise": f"{self.revise_s}s"}
        return {"pipeline": "whole", **said, "steps": [step.document for step in self.steps]}

    def stream_documents(self) -> list[dict[str, Any]]:
        return [
            {"stream": name, "partitions": self.partitions, "schema": SCHEMAS[at], "key": "machine", "retention": "7d"}
            for at, name in enumerate(self.streams)
        ]

    def _draw(self) -> None:
        random = self._random
        if self.revise_s is not None:
            source = random.choice(self._relations)
            for _ in range(random.randint(0, 2)):
                source = self._records_step(source)
            self._window(source)
            return
        if self._has_dedupe:
            before = self._records_step(self._relations[0]) if random.random() < 0.4 else self._relations[0]
            self._dedupe(before)
        for _ in range(random.randint(1, 4)):
            sources = [one for one in self._relations if one.every_s is None and "emission" not in one.name]
            if self._has_join and random.random() < 0.6:
                self._has_join = False
                self._join()
            elif random.random() < 0.5:
                self._records_step(random.choice(sources))
            else:
                self._window(random.choice(sources))
        while self._open:
            name = sorted(self._open)[0]
            relation = next(one for one in self._relations if one.name == name)
            if random.random() < 0.3 and relation.every_s is None:
                self._emission(relation)
            else:
                self._window(relation)

    def _add(
        self,
        relation: Relation | Sequence[Relation],
        verb: dict[str, Any],
        means: Callable[..., Any],
        emits: str | None = None,
    ) -> int:
        """Put a step behind the others."""
        sources = [relation] if isinstance(relation, Relation) else list(relation)
        at, document = len(self.steps), dict(verb)
        if "join" not in document:
            if len(sources) > 1:
                document["from"] = [one.name for one in sources]
            elif sources[0].at != at - 1 or len(self.streams) > 1 or self._random.random() < 0.3:
                document["from"] = sources[0].name
        self.steps.append(Step(document, tuple(one.at for one in sources), means, emits))
        self._open -= {one.name for one in sources}
        return at

    def _taken(self, relation: Relation) -> tuple[list[Relation], Relation, Callable[..., Any] | None]:
        """Return the input of a step of records: the relation, or by chance its union with records of the other stream."""
        others = [one for one in self._relations if one.every_s is None and not one.streams & relation.streams]
        if relation.every_s is not None or not others or self._random.random() < 0.4:
            return [relation], relation, None
        other = self._random.choice(others)
        both = sorted([relation, other], key=lambda one: min(one.streams))
        if relation.has_repeats_left_out or other.has_repeats_left_out:
            return [relation], relation, None
        columns = tuple(name for name in both[0].columns if name in both[1].columns)
        united = replace(
            relation,
            columns=columns,
            streams=relation.streams | other.streams,
            derived=relation.derived | other.derived,
        )
        return both, united, lambda means: oracle.united(columns, means)

    def _records_step(self, source: Relation) -> Relation:
        """A step of records, with a name."""
        random = self._random
        sources, before, of_all = self._taken(source)
        columns, name = set(before.columns), f"r{len(self.steps)}"
        conditions = [one for one in CONDITIONS if columns >= set(one.reads)] or [ALWAYS]
        lookups = [
            (lookup, prefix)
            for lookup, one in LOOKUPS.items()
            for prefix in ("", "", "own_")
            if columns >= set(one.key) and not {prefix + field for field in one.added} & (columns | before.derived)
        ]
        derives = [
            key
            for key, (_, one) in DERIVED.items()
            if columns >= set(one.reads) and key not in {*columns, *before.derived}
        ]
        after = replace(before, name=name, at=len(self.steps))
        kind = random.random()
        if kind < 0.35 or not derives:
            condition = random.choice(conditions)
            verb, means = {"where": condition.sql}, oracle.filtered(condition)
        elif kind < 0.7:
            keys = random.sample(derives, random.randint(1, min(2, len(derives))))
            expressions = {key: DERIVED[key][1] for key in keys}
            verb, means = {"derive": {key: one.sql for key, one in expressions.items()}}, oracle.derived(expressions)
            after = replace(after, columns=(*before.columns, *keys), derived=before.derived | set(keys))
        elif kind < 0.85 and lookups:
            verb, means, added = self._enrich(*random.choice(lookups))
            after = replace(after, columns=(*before.columns, *added), derived=before.derived | set(added))
        elif kind < 0.89 and columns >= {"kind", "power"} and "weight" not in columns | before.derived:
            verb, means = {"map": FUNCTION}, oracle.mapped(["kind", "power"], weighed)
            after = replace(
                after, columns=(*before.columns, "weight", "class"), derived=before.derived | {"weight", "class"}
            )
        elif kind < 0.94:
            drop = random.choice([one for one in before.columns if one not in ("machine", *TIMES)] or ["machine"])
            kept = tuple(one for one in before.columns if one != drop)
            verb, means = {"drop": [drop]}, oracle.chosen(kept)
            after = replace(after, columns=kept)
        else:
            kept = tuple(random.sample(before.columns, random.randint(2, len(before.columns))))
            verb, means = {"select": list(kept)}, oracle.chosen(kept)
            after = replace(after, columns=kept)
        at = self._add(sources, {**verb, "name": name}, of_all(means) if of_all else means)
        after = replace(after, at=at)
        self._relations.append(after)
        self._open.add(name)
        if random.random() < 0.25 and self.revise_s is None:
            self._emission(after)
        return after

    def _enrich(self, name: str, prefix: str) -> tuple[dict[str, Any], Callable[..., Any], list[str]]:
        """The step, what it means, and the columns that it adds. `prefix`: of their names, before those of the fields."""
        random, lookup = self._random, LOOKUPS[name]
        self.lookups.setdefault(name, random.random() < 0.75)
        optional = random.random() < 0.5
        add = {prefix + one: one for one in (lookup.added if random.random() < 0.7 else lookup.added[:1])}
        names = random.sample(lookup.key, len(lookup.key))
        key = random.choice([names if len(names) > 1 else names[0], {one: one for one in names}])
        said = {"lookup": name, "key": key, "add": add if prefix else random.choice([add, list(add)])}
        means = oracle.enriched(name, lookup.key, add, optional)
        return {"enrich": said | ({"optional": True} if optional else {})}, means, list(add)

    def _dedupe(self, source: Relation) -> None:
        random = self._random
        by = [one for one in ("machine", "count", "site", "kind", "team", "owner") if one in source.columns]
        by = ["machine", *random.sample(by[1:], random.randint(1, len(by) - 1))] if len(by) > 1 else by
        within_s = random.choice([1, 5, 30])
        name = f"once{len(self.steps)}"
        verb = {"dedupe": {"by": by, "within": f"{within_s}s"}, "name": name}
        at = self._add(source, verb, oracle.without_duplicates(by, within_s * 1000))
        self._relations.append(replace(source, at=at, name=name, has_repeats_left_out=True))
        self._open.add(name)

    def _emission(self, source: Relation) -> None:
        sources, before, of_all = self._taken(source)
        name = f"emission{len(self.steps)}"
        means = of_all(oracle.emitted()) if of_all else oracle.emitted()
        # In a step of its own, and nothing takes from it by its name.
        verb = {"emit": [{"elasticsearch": name}], "name": name}
        self._add(sources, {**verb, "from": [one.name for one in sources] if of_all else source.name}, means, name)
        del before

    def _shape(self, before: Relation) -> tuple[dict[str, Any], dict[str, Any], int, int, bool]:
        """The fields of a window, what the oracle needs of them, the offset and how far apart windows end, and whether they end
        anywhere."""
        random = self._random
        base = before.every_s or 1
        every_s = base * random.choice([2, 5, 10] if base == 1 else [1, 2, 3])
        fields: dict[str, Any]
        kind = random.random() if self.revise_s is None else random.uniform(0.25, 0.82)
        times = random.choice([2, 3])
        offset_s = random.choice([0, 0, 1]) if before.every_s is None and every_s > 1 else 0
        offset = {"offset": f"{offset_s}s"} if offset_s else {}
        if before.every_s is None and kind > 0.92:
            self.has_days = True
            days, hours = random.choice([1, 1, 2]), random.choice([0, 6])
            zone = "Europe/Berlin"
            begins = {"tz": zone, **({"offset": f"{hours}h"} if hours else {})}
            if kind > 0.98:
                fields, shape = {"sliding": {"size": f"{days}d", "every": "1d"}}, {"last days": (zone, days)}
            elif kind > 0.96:
                fields = {"cumulative": {"size": f"{days}d", "step": "1h"}}
                shape = {"days so far": (zone, days, 3_600_000)}
            else:
                fields, shape = {"tumbling": f"{days}d"}, {"days": (zone, days)}
            return {**fields, **begins}, shape, hours * 3600, 86_400, False
        if before.every_s is None and kind > 0.88:
            within_s = random.choice([1, 5, 60])
            return {"previous": {"within": f"{within_s}s"}}, {"previous": within_s * 1000}, 0, 1, True
        if before.every_s is None and kind > 0.82:
            size, max_s = random.choice([1, 3, 10]), random.choice([10, 60])
            return {"count": {"size": size, "max": f"{max_s}s"}}, {"count": (size, max_s * 1000)}, 0, 1, True
        if kind < 0.25:
            gap_s = every_s + 1 if before.every_s is not None else every_s
            times = random.choice([1, 3, 20])
            session = {"gap": f"{gap_s}s", "max": f"{gap_s * times}s"}
            return {"session": session}, {"session": (gap_s * 1000, gap_s * 1000 * times)}, 0, every_s, True
        if kind < 0.4:
            fields = {"sliding": {"size": f"{every_s * times}s", "every": f"{every_s}s"}}
            return {**fields, **offset}, {"sliding": (every_s * times * 1000, every_s * 1000)}, offset_s, every_s, False
        if kind < 0.55:
            fields = {"cumulative": {"size": f"{every_s * times}s", "step": f"{every_s}s"}}
            return (
                {**fields, **offset},
                {"cumulative": (every_s * times * 1000, every_s * 1000)},
                offset_s,
                every_s,
                False,
            )
        return {"tumbling": f"{every_s}s", **offset}, {"tumbling": every_s * 1000}, offset_s, every_s, False

    def _window(self, source: Relation, depth: int = 0) -> None:
        random = self._random
        sources, before, of_all = self._taken(source)
        is_first = before.every_s is None
        name = f"w{len(self.steps)}"
        fields, shape, offset_s, every_s, is_anywhere = self._shape(before)
        wanted = [one for one in KEYS if one in before.columns] if is_first else list(before.keys)
        by = random.sample(wanted, random.randint(0, min(2, len(wanted))))
        known = AGGREGATES if is_first else LATER
        known = known | (COMPARISONS if "previous" in fields else {})
        fitting = {key: one for key, one in known.items() if set(one.reads) <= set(before.columns) and key not in by}
        must = [key for key in ("n", "most") if key in fitting]
        must += [key for key in COMPARISONS if key in fitting]
        more = random.sample(sorted(fitting), random.randint(0, min(5, len(fitting))))
        if not is_first and "n" not in fitting:
            must.append("parts")
        aggregates = {key: fitting[key] for key in dict.fromkeys([*must, *more])}
        window = {"name": name, **fields, "by": by, "aggregate": {key: one.sql for key, one in aggregates.items()}}
        is_revised = self.revise_s is not None
        means = oracle.windowed(shape, offset_s * 1000, by, aggregates, is_revised=is_revised)
        is_last = depth >= 2 or random.random() < 0.55 or is_revised
        behind = random.random() < 0.4 and not is_revised
        emits = (is_last and not behind) or (not behind and random.random() < 0.6)
        verb = {"window": window} | ({"emit": [{"elasticsearch": name}]} if emits else {})
        at = self._add(sources, verb, of_all(means) if of_all else means, name if emits else None)
        keys = (*by, *(key for key in aggregates if key in TYPES_OF_AGGREGATES))
        after = Relation(
            at, name, (*by, *aggregates), before.streams, every_s=every_s, keys=keys, is_anywhere=is_anywhere
        )
        self._relations.append(after)
        if offset_s or "tz" in fields:  # windows behind begin with these
            after = replace(after, every_s=None)
        if behind:
            after = self._behind(after, name)
        if not is_last and after.every_s is not None:
            self._window(after, depth + 1)

    def _behind(self, source: Relation, stage: str) -> Relation:
        """Steps behind a window or a join, and its emission."""
        random = self._random
        fitting = [
            (key, one) for key, one in BEHIND if set(one.reads) <= set(source.columns) and key not in source.columns
        ]
        for key, expression in random.sample(fitting, random.randint(0, min(2, len(fitting)))):
            name = f"b{len(self.steps)}"
            if key == "where":
                at = self._add(source, {"where": expression.sql, "name": name}, oracle.filtered(expression))
                source = replace(source, at=at, name=name)
            else:
                verb = {"derive": {key: expression.sql}, "name": name}
                at = self._add(source, verb, oracle.derived({key: expression}))
                source = replace(source, at=at, name=name, columns=(*source.columns, key))
        self._add(source, {"emit": [{"elasticsearch": stage}]}, oracle.emitted(), stage)
        return source

    def _join(self) -> None:
        random = self._random
        records = [one for one in self._relations if one.every_s is None and not one.has_repeats_left_out]
        results = [one for one in self._relations if one.every_s is not None and one.keys]
        of_results = bool(results) and random.random() < 0.6
        if of_results:
            left = random.choice(results)
            right = random.choice([*results, self._records_step(random.choice(records))])
            left, right = random.choice([(left, right), (right, left)])
        else:
            left = self._records_step(random.choice(records[:1] if random.random() < 0.5 else records))
            right = self._records_step(random.choice([*records, left]))
        keys = [one.columns if one.every_s is None else one.keys for one in (left, right)]
        shared = [one for one in ("machine", "site", "kind") if all(one in names for names in keys)]
        if not shared:
            return
        on = random.sample(shared, random.randint(1, min(2, len(shared))))
        name = f"j{len(self.steps)}"
        add = {
            f"{word}_{column}": (side, column)
            for side, (word, one) in enumerate((("l", left), ("r", right)))
            for column in random.sample(one.columns, min(3, len(one.columns)))
            if column not in ("tags",)
        }
        add |= {"power": (0, "power")} if "power" in left.columns else {}
        before_s, after_s = random.choice([(0, 2), (1, 3), (2, 0), (0, 0)])
        every_s = 1
        if of_results or random.random() < 0.7:
            near: dict[str, Any] = {"within": {"before": f"{before_s}s", "after": f"{after_s}s"}}
            means_near = {"before": before_s * 1000, "after": after_s * 1000}
        else:
            every_s = random.choice([2, 5])
            near, means_near = {"tumbling": f"{every_s}s"}, {"tumbling": every_s * 1000}
        kind = random.choice(["inner", "left", "full"])
        if "within" in near and right.every_s is None and random.random() < 0.4:
            near, means_near = (
                {"within": {"before": f"{before_s + 1}s"}, "latest": True},
                {"before": (before_s + 1) * 1000, "latest": True},
            )
            kind = random.choice(["inner", "left"])
        emits = random.random() < 0.6
        join = {"name": name, "left": left.name, "right": right.name, "on": on, **near, "type": kind}
        join["add"] = {key: f"{('left', 'right')[side]}.{column}" for key, (side, column) in add.items()}
        verb = {"join": join} | ({"emit": [{"elasticsearch": name}]} if emits else {})
        means = oracle.joined(on, means_near, kind, add)
        at = self._add([left, right], verb, means, name if emits else None)
        columns = (*on, *add)
        joined = Relation(at, name, columns, left.streams | right.streams, every_s=every_s, keys=tuple(on))
        self._relations.append(joined)
        if emits and random.random() < 0.4:
            return
        self._behind_join(joined, depth=1)

    def _behind_join(self, joined: Relation, depth: int) -> None:
        """A window of joined rows."""
        known = {"n": AGGREGATES["n"], "power": AGGREGATES["power"], "most": AGGREGATES["most"]}
        aggregates = {key: one for key, one in known.items() if set(one.reads) <= set(joined.columns)}
        random, name = self._random, f"w{len(self.steps)}"
        fields, shape, _, every_s, is_anywhere = self._shape(joined)
        by = random.sample(joined.keys, random.randint(0, len(joined.keys)))
        window = {"name": name, **fields, "by": by, "aggregate": {key: one.sql for key, one in aggregates.items()}}
        verb = {"window": window, "emit": [{"elasticsearch": name}]}
        at = self._add(joined, verb, oracle.windowed(shape, 0, by, aggregates), name)
        after = Relation(
            at, name, (*by, *aggregates), joined.streams, every_s=every_s, keys=tuple(by), is_anywhere=is_anywhere
        )
        self._relations.append(after)
        if random.random() < 0.3:
            self._window(after, depth + 1)


def some_log(random: Random, pipeline: SomePipeline, count: int) -> list[Sent | Applied | Followed]:
    """Records with disorder, duplicates, late ones, and ones that can't be read; between them lookups change."""
    log: list[Sent | Applied | Followed] = []
    changing = [name for name, changes in pipeline.lookups.items() if changes]
    changes = some_changes(random, pipeline.lookups, changing)
    pace_ms, spread_ms = random.choice([20, 150, 600]), random.choice([0, 1_500, 8_000])
    at_ms = START_MS + random.randrange(60_000)
    if pipeline.has_days:
        at_ms = random.choice(DAYS_MS) + random.randrange(3_600_000)
    stays, stream = random.choice([0, 0.8, 0.95]), 0
    for _ in range(count):
        log += next(changes)
        before = [one for one in log[-40:] if isinstance(one, Sent)]
        if before and random.random() < 0.12:
            log.append(random.choice(before))
            continue
        at_ms += random.randrange(2 * pace_ms) + (40_000 if random.random() < 0.004 else 0)
        if pipeline.has_days and random.random() < 12 / count:
            at_ms += random.randrange(6 * 3_600_000)
        if random.random() >= stays:
            stream = random.randrange(len(pipeline.streams))
        columns = _some_columns(random, stream)
        event_ms = at_ms - (random.randrange(spread_ms) if spread_ms and random.random() < 0.5 else 0)
        sent = {**columns, TIMES[stream]: event_ms}
        line = json.dumps(
            {name: one for name, one in sent.items() if one is not None or random.random() < 0.5}
        ).encode()
        partition = zlib.crc32(columns["machine"].encode()) % pipeline.partitions
        broken = random.random()
        if broken < 0.015:
            log.append(Sent(stream, partition, line[:-3], event_ms, None))
        elif broken < 0.03:
            wrong = json.dumps({**sent, "noise": "loud"}).encode()
            log.append(Sent(stream, partition, wrong, event_ms, None))
        else:
            shown = {name: sent[name] if name not in TIMES else oracle.moment(event_ms) for name in SCHEMAS[stream]}
            log.append(Sent(stream, partition, line, event_ms, shown))
    return log + next(changes)


def _some_columns(random: Random, stream: int) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "machine": f"m{random.randrange(5)}",
        "site": random.choice(["north", "south", "east", "", None]),
        "kind": random.choice("aabx"),
        "power": random.choice([None, random.randrange(-800, 800) / 8]),
        "noise": random.uniform(-100, 100),
        "count": random.choice([None, 0, -1, 2, random.randrange(50)]),
        "tags": random.choice([None, [], [random.randrange(9)], [random.randrange(9) for _ in range(3)]]),
    }
    return {name: one for name, one in columns.items() if name in SCHEMAS[stream]}


def kinds_of_steps(pipelines: Sequence[SomePipeline]) -> Counter[str]:
    """Return the number of each kind of step, window, join, and lookup in the pipelines."""
    found: Counter[str] = Counter()
    for pipeline in pipelines:
        document = pipeline.document()
        found["changing lookup"] += any(pipeline.lookups.values())
        found["followed lookup"] += any(LOOKUPS[name].is_followed for name in pipeline.lookups)
        found["several streams"] += "inputs" in document
        found["revised"] += "late" in document
        for step in document["steps"]:
            found["union"] += isinstance(step.get("from"), list)
            found["branch"] += isinstance(step.get("from"), str)
            found.update(
                verb
                for verb in ("where", "derive", "select", "drop", "enrich", "map", "dedupe", "emit")
                if verb in step
            )
            window, join = step.get("window", {}), step.get("join", {})
            found.update(WINDOW_KEYWORDS.keys() & window.keys())
            found["days"] += "tz" in window
            found["latest join"] += "latest" in join
            found.update(f"{kind} join" for kind in ("within", "tumbling") if kind in join)
            stages = {one["window"]["name"] for one in document["steps"] if "window" in one}
            found["join of results"] += bool(stages & {join.get("left"), join.get("right")})
    return found
