"""Distribution of the tests to workers: the order of modules, and the modules that stay together and share servers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Set
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

LONGEST = (
    "test_failover",
    "test_rejected_records",
    "test_cluster",
    "test_same_slices",
    "test_snapshots",
    "test_upgrade",
    "test_job_faults",
    "test_ingest_faults",
    "test_console",
    "test_embedded_stack",
    "test_supervisor",
    "test_secured_servers",
    "test_log_reading",
    "test_kafka_proxy",
    "test_simulation",
    "test_command_line",
    "test_backfill_jobs",
    "test_window_operator",
    "test_job_checker",
)
"""The modules that take longest. They begin first, so that no worker ends with one of them while others have nothing left to do.
A module that is not named here costs some time and nothing else."""
_KINDS_WITH_SERVERS = {"contract", "integration", "migration", "fault"}
_KINDS_BY_NEED = (_KINDS_WITH_SERVERS, {"unit", "property", "simulation"})
_TESTS = Path(__file__).parents[1]
_FIRST_WORKER = "gw0"
_NICENESS = 5
_NEEDS_SERVERS = re.compile(
    r"[\s(](?:kafka|elasticsearch|platform|audit_lab|spark|class_archive)[:,)]|getfixturevalue\(\"elasticsearch\"\)"
)
"""Matches a test with one of these fixtures, which use the servers of the run."""
_NEEDS_BROWSER = re.compile(r"\bbrowser: Browser\b")
_FIXTURES = {"servers": "servers", "browser": "browser", "fault": "cluster"}
"""Group of modules -> the fixture that they share. The fixtures that use this one end together with it."""


@cache
def group_of(module: Path) -> str | None:
    """Return the group of a module, None if it has no group. The modules of a group are run by one worker.

    `servers`: Kafka, Elasticsearch, the platform, or Spark. `browser`: the console. `fault`: a broker that is broken. To
    start them in other workers, too, takes longer than it saves. While they are idle, they use CPU time and memory. A wrong
    answer costs time and nothing else.
    """
    kind = _kind(module)
    if kind not in _KINDS_WITH_SERVERS:
        return None
    text = module.read_text(encoding="utf-8")
    if _NEEDS_BROWSER.search(text):
        return "browser"
    return "servers" if _NEEDS_SERVERS.search(text) else "fault" if kind == "fault" else None


def pytest_configure(config: pytest.Config) -> None:
    """Let the other workers, and what they start, yield to the worker with the servers, which would end last. Name a test
    that failed at once."""
    worker = getattr(config, "workerinput", {}).get("workerid", _FIRST_WORKER)
    if worker != _FIRST_WORKER and config.getvalue("markexpr") == "not long":
        os.nice(_NICENESS)
    if config.getvalue("dist") != "no":  # it is in workers
        config.pluginmanager.register(_NamesOfFailures(config))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what a group of modules shares after the last test of the group.

    An idle platform with its Kafka uses a twentieth of a core, and 3 GB of memory. Playwright has an event loop in the
    thread of the tests, so no other loop can run there.

    With the long tests, modules of all groups are mixed, and only the browser ends.
    """
    group = group_of(item.path)
    if nextitem is None or group is None or group_of(nextitem.path) == group:
        return
    if group == "browser" or item.config.getvalue("markexpr") == "not long":
        for fixture in item.session._fixturemanager.getfixturedefs(_FIXTURES[group], item) or ():
            fixture.finish(item._request)  # type: ignore[attr-defined]


class _NamesOfFailures:
    """Names a test that failed at once. Workers' tests are dots until the end, which may be two hours away."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._plugins.get_plugin("terminalreporter").write_line(f"\nFAILED {report.nodeid} ({report.when})")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the modules that need servers first, and the longest first among the others, unless a random order is requested.

    The tests of each module that is marked `in_order` get the order of the file, in their own slots.
    """
    if not config.pluginmanager.hasplugin("randomly"):
        ranks = {name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
        places_of = {module: place for kind in _KINDS_BY_NEED for module, place in _places(items, kind).items()}
        items.sort(key=lambda item: (group_of(item.path) != "servers", places_of[item.path]))
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if item.get_closest_marker("in_order"):
            places.setdefault(str(item.path), []).append(place)
    for of_module in places.values():
        in_order = sorted((items[place] for place in of_module), key=lambda item: item.location[1] or 0)
        for place, item in zip(of_module, in_order, strict=True):
            items[place] = item


def _places(items: Iterable[pytest.Item], kinds: Set[str]) -> dict[Path, float]:
    """Return the position of each module of these kinds among their items, from 0 to 1: modules that wait for servers
    are spread evenly among those that compute."""
    modules = [item.path for item in items if _kind(item.path) in kinds]
    first: dict[Path, float] = {}
    for place, module in enumerate(modules):
        first.setdefault(module, place / len(modules))
    return first


@cache
def _kind(module: Path) -> str:
    """Return the kind of the tests of a module: its first folder in `tests`. The folders below mirror those of the code."""
    return module.relative_to(_TESTS).parts[0]


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist says nothing of its types
    """A module is assigned to one worker, and so are all modules of a group together.

    With the long tests these are most of the work: then each test is assigned to a free worker.
    """

    def schedule(self) -> None:
        # The first worker gets the first tests.
        self.assigned_work = dict(sorted(self.assigned_work.items(), key=lambda one: str(one[0].gateway.id)))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        if self.config.getvalue("markexpr") != "not long":
            return module
        return group_of(self.config.rootpath / module) or module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
