"""Finds tests that depend on time by chance. Run as `python -m tests.support.timing_check [DIRECTORY...]`; part of `make check`.

The rules (names appear in the messages):

- `sleep`: a test sleeps instead of waiting for what it needs.
- `clock`: a loop ends, or an assert fails, by the clock, whatever progress there is and however busy the machine is.
- `limit`: a blocking call gives up after a fixed time, however busy the machine is.
- `once`: a test reads once, directly after a write, what becomes visible only after a moment, and indexes the answer.

A line with a comment `# sleeps: REASON` is exempt: the time itself is the subject of the test.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

MARKER = re.compile(r"#.*\bsleeps: \S+")
EXEMPT = ("tests/support/waiting.py", "tests/support/virtual_time.py")
REMEDIES = {
    "sleep": "wait with wait_until of tests/support/waiting.py, or say why with a comment `# sleeps: REASON`",
    "clock": "wait with wait_until or Patience of tests/support/waiting.py; for a promised time, compare with stretched(LIMIT)",
    "limit": "pass stretched(LIMIT) of tests/support/waiting.py",
    "once": "read with wait_until of tests/support/waiting.py until the answer holds what was written",
}
_CLOCKS = {"monotonic", "perf_counter", "time"}
_CLOCK_OWNERS = {"time", "loop"}
_TIMED = {
    "wait",
    "join",
    "result",
    "communicate",
    "acquire",
    "wait_for",
    "timeout",
    "run",
    "check_output",
    "check_call",
}
_TIMED |= {"wait_for_publish"}
_TIMED_OWNERS = {"wait_for": {"asyncio"}, "timeout": {"asyncio"}, "run": {"subprocess"}}
_WRITES = {
    "write",
    "send",
    "produce",
    "publish",
    "append",
    "apply",
    "reject",
    "flush",
    "commit_transaction",
    "send_batch",
}
_WRITES |= {"put", "post", "request", "bulk"}
_READS = {"page", "dead_letters", "letters", "consume", "poll"}
"""Readers of the current state. `read_messages` of tests/support/topic_reader.py isn't one: it waits for commits."""
_SEARCH, _REFRESH = "_search", "_refresh"
_POLL_S_MAX = 1
"""A limit of at most this many seconds is the pace of a loop, which looks again."""


class Finding(NamedTuple):
    """A line that breaks a rule."""

    path: Path
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}; {REMEDIES[self.rule]}"


def check_text(text: str, path: Path) -> list[Finding]:
    """Return the findings of one module, in the order of its lines."""
    lines = text.splitlines()
    found = {
        (node.lineno, rule): Finding(path, node.lineno, rule, what)
        for node, rule, what in _findings(ast.parse(text))
        if not any(MARKER.search(line) for line in lines[node.lineno - 1 : node.end_lineno])
    }
    return [found[key] for key in sorted(found)]


def check_tree(root: Path, directories: list[str]) -> list[Finding]:
    """Return the findings of all modules in the directories below `root`."""
    paths = sorted(path for one in directories for path in (root / one).rglob("*.py"))
    return [
        finding
        for path in paths
        if path.relative_to(root).as_posix() not in EXEMPT
        for finding in check_text(path.read_text(encoding="utf-8"), path.relative_to(root))
    ]


def _findings(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str, str]]:
    nodes = list(ast.walk(tree))
    limits = [(node, limit) for node in nodes if isinstance(node, ast.Call) and (limit := _fixed_limit(node))]
    # To look for the few blocks that expect a timeout, and for pairs of statements, costs more than all the rest.
    expecting = [node for node in nodes if _expects_a_timeout(node)] if limits else []
    expected = {id(inner) for node in expecting for inner in ast.walk(node)}
    yield from ((node, "limit", f"a fixed limit, {limit}") for node, limit in limits if id(node) not in expected)
    reads = any(isinstance(node, ast.Subscript | ast.Assign) and _is_read(node.value) for node in nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            if _name(node) == "sleep" and _owner(node) in ("time", "asyncio", "") and not _is_zero(node):
                yield node, "sleep", "a sleep"
        elif isinstance(node, ast.While):
            yield from ((one, "clock", "a loop that ends by the clock") for one in _clock_tests(node))
        elif isinstance(node, ast.Assert):
            yield from ((node, "clock", "an assert of elapsed time") for one in [node.test] if _is_upper_bound(one))
        for block in ("body", "orelse", "finalbody"):
            if reads and isinstance(statements := getattr(node, block, None), list):
                yield from ((one, "once", "an index into an answer after a write") for one in _read_once(statements))


def _name(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _owner(call: ast.Call) -> str:
    """The name before the dot; empty for a bare name."""
    if not isinstance(call.func, ast.Attribute):
        return ""
    owner = call.func.value
    return owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else "?"


def _is_zero(call: ast.Call) -> bool:
    """A sleep of 0 only lets other tasks run."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call) and _name(one) in _CLOCKS and _owner(one) in _CLOCK_OWNERS for one in ast.walk(node)
    )


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, without the bodies of functions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own(child)


def _clock_tests(loop: ast.While) -> Iterator[ast.stmt | ast.expr]:
    """Comparisons with the clock that decide when the loop ends."""
    if _reads_clock(loop.test):
        yield loop.test
    for one in (one for statement in loop.body for one in _own(statement)):
        if isinstance(one, ast.Assert) or (isinstance(one, ast.If) and _leaves(one)):
            test = one.test
            if isinstance(test, ast.Compare) and _reads_clock(test):
                yield test


def _leaves(branch: ast.If) -> bool:
    """True if the branch ends the loop, the function, or the test."""
    return any(
        isinstance(one, ast.Raise | ast.Break | ast.Return) or (isinstance(one, ast.Call) and _name(one) == "fail")
        for statement in branch.body
        for one in _own(statement)
    )


def _is_upper_bound(test: ast.expr) -> bool:
    """True for `clock - began < LIMIT` whose limit isn't stretched."""
    if not isinstance(test, ast.Compare) or not _reads_clock(test) or not isinstance(test.ops[-1], ast.Lt | ast.LtE):
        return False
    bound = test.comparators[-1]
    return not _reads_clock(bound) and not any(
        isinstance(one, ast.Call) and _name(one) == "stretched" for one in ast.walk(bound)
    )


def _fixed_limit(call: ast.Call) -> str:
    """The fixed limit of a blocking call, as source text; empty if it has none."""
    name = _name(call)
    if name not in _TIMED or _owner(call) not in _TIMED_OWNERS.get(name, {_owner(call)}):
        return ""
    given = [keyword.value for keyword in call.keywords if keyword.arg in ("timeout", "timeout_s")]
    if not given and name not in ("run", "check_output", "check_call", "communicate"):
        given = call.args[-1:] if len(call.args) == (2 if name in ("wait_for", "acquire") else 1) else []
    for one in given:
        is_name = isinstance(one, ast.Name) and one.id.isupper() and one.id.endswith("_S")
        value = one.value if isinstance(one, ast.Constant) else None
        if is_name or (isinstance(value, int | float) and value > _POLL_S_MAX):
            return ast.unparse(one)
    return ""


def _expects_a_timeout(node: ast.AST) -> bool:
    """True for a `with` block or a `try` that expects the limit to be reached."""
    if isinstance(node, ast.With):
        return any("Timeout" in ast.unparse(item.context_expr) for item in node.items)
    return isinstance(node, ast.Try) and any(one.type and "Timeout" in ast.unparse(one.type) for one in node.handlers)


def _read_once(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that index what one look has found, directly after a statement that writes."""
    plain = (ast.Expr, ast.Assign, ast.Assert)
    for before, after in pairwise(statements):
        if not isinstance(before, plain) or not isinstance(after, plain) or not _is_indexed(after):
            continue
        if _calls(before, _WRITES) and not _waits(before) and not _waits(after):
            yield after


def _calls(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(one, ast.Call) and _name(one) in names for one in _own(node))


def _waits(node: ast.AST) -> bool:
    """True for a call of a function that waits, and for a refresh of an index."""
    return any(
        (isinstance(one, ast.Call) and "wait" in _name(one))
        or (isinstance(one, ast.Constant) and isinstance(one.value, str) and _REFRESH in one.value)
        for one in ast.walk(node)
    )


def _is_indexed(node: ast.AST) -> bool:
    """True if a part of the statement is `read(...)[0]`, `read(...).letters[1]`, or `(one,) = read(...)`."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List) and _is_read(node.value):
        return True
    return any(
        isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant | ast.UnaryOp) and _is_read(one.value)
        for one in _own(node)
    )


def _is_read(node: ast.expr) -> bool:
    """True for a call of a reader, whatever attribute or item of the answer is taken."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Call):
        return False
    texts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))
    return _name(node) in _READS or any(_SEARCH in text for text in texts)


def main(directories: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    found = check_tree(Path(__file__).parents[2], directories or ["tests"])
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
