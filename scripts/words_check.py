"""Check that docstrings, comments, messages, docs, and the console's texts are plain English.

`make check` runs it. `words_limits.txt` contains how many findings each path may still have. A count must not rise.

    python scripts/words_check.py                      compare all counts with words_limits.txt
    python scripts/words_check.py PATH...              print the findings in these files and folders
    python scripts/words_check.py PATH... --hints      print also phrases that are only suspicious
    python scripts/words_check.py --lower              write the counts that fell into words_limits.txt
    python scripts/words_check.py --counts             print a table of all counts by path and rule

Only the standard library is used, so the check starts without an environment.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_name("words_limits.txt")
TREES = ("strandline", "tests", "benchmarks", "examples", "scripts", "docs", "console/src", ".github", "docker")
EXEMPT = (
    "scripts/words_check.py",
    "tests/unit/test_words_check.py",
    "tests/support/data",
    "strandline/migrations/versions",
    "strandline/services/console/built",
    "docs/assets",
    "strandline/services/cli/page/uPlot.iife.min.js",
)
"""Files that must contain what this check forbids, and files that no person writes."""
SENTENCE_WORDS_MAX = 30
LONG = "long"
"""Name of the rule for sentences of more than SENTENCE_WORDS_MAX words."""

DOCSTRING, FIELD, COMMENT, MESSAGE, PROSE = "docstring", "field", "comment", "message", "prose"
DOCSTRINGS = frozenset({DOCSTRING, FIELD})
ALL = frozenset({DOCSTRING, FIELD, COMMENT, MESSAGE, PROSE})


class Rule(NamedTuple):
    """A phrase that plain English avoids."""

    pattern: re.Pattern[str]
    instead: str
    scope: frozenset[str] = ALL
    is_ban: bool = True
    ignores_case: bool = False


def ban(pattern: str, instead: str, scope: frozenset[str] = ALL) -> Rule:
    """Return a rule whose findings fail the check. A pattern without capitals is compared with the text in lower case."""
    return Rule(re.compile(pattern), instead, scope, ignores_case=pattern == re.sub("[A-Z]", "", pattern))


def hint(pattern: str, instead: str, scope: frozenset[str] = ALL) -> Rule:
    """Return a rule whose findings are only printed."""
    return ban(pattern, instead, scope)._replace(is_ban=False)


RULES = {
    "D1": ban(
        r"^(So (many|much|long|far|often|large|soon)|For (at most )?so|((By|With|In|From|On|To|At|For|Under|Behind|As) "
        r"(which|whom|what)|Whom?|Whose))\b",
        "open with the noun: 'Maximum ...', 'Number of ...', 'Version that ...'",
        DOCSTRINGS,
    ),
    "D2": ban(r"^Of\b", "open with the noun: 'Topic retention in ms'", DOCSTRINGS),
    "D3": ban(
        r"^Whether (there|one|it|they|this|that|any|all|its|their|each|somebody|nobody)\b",
        "'True if the <noun> ...', 'Return True if the <noun> ...'",
        DOCSTRINGS,
    ),
    "D4": ban(
        r"^(Likewise|The same|As|Those|These|They|Their|Its?|Stands|Lies)\b",
        "write a sentence with its own noun; link with 'See `name`.'",
        DOCSTRINGS,
    ),
    "D5": ban(
        r"^(What|How|Where|When|Which|Why|Who)\b",
        "open with a noun ('Outcome of ...') or a verb ('Return ...')",
        frozenset({DOCSTRING}),
    ),
    "D5F": hint(r"^(What|How|Where|When|Which|Why|Who)\b", "open with a noun", frozenset({FIELD})),
    "D6": hint(r"(^|[.;] )(None|Null):  ?", "'None if <condition>.'", DOCSTRINGS),
    "F1": ban(
        r"(?:^|[.;:] )Of (a|an|the|each|all|both|several|two|one|every|those|these|some|it|its|which)\b",
        "subject first: 'If a pipeline has several streams, the preview ...'",
    ),
    "F2": ban(
        r"\bwhat (stands|is there|was there|lies|comes|came|goes|went|is left|was left|is said|stood|"
        r"(it (is|was|has|holds|gives|takes|says)|they (are|were|have|hold|give|take|say)))\b",
        "name the thing: existing files, new records, remaining rows, definition",
    ),
    "F3": hint(
        r"\bones? (that|which|who|whose|with|without|of|in|behind|beside|before|after|alone)\b",
        "repeat the noun",
    ),
    "F4": ban(
        r"\b(an|the) only one\b|\bone alone\b|\b(of|on) one's own\b|"
        r"\b(so many|so much(?! (more|less|so))|for so long|so often(?! that)|so late(?! that)|so soon|so far back)\b",
        "'a single <noun>', 'its own <noun>'; the number, limit, or unit",
    ),
    "F5": hint(
        r"\b(by|to|from|in|under|with|for|of|at|on|behind|beside|through) (which|whom)\b",
        "split the sentence, or 'that ... with'",
    ),
    "F6": ban(
        r"\bbut for\b|\b(all|nothing|anything) but\b|\bshall\b|\ball the same\b|\bfor ever\b",
        "except, only; must; anyway; forever",
    ),
    "F7": hint(
        r"\b(is|are|was|were) to (be|have|get|go|come|take|end|say|hold|keep|read|write|run|begin)\b|"
        r"\b(has|have|had) (come|gone)\b|\b(is|are|was|were) gone\b",
        "must, or present tense; arrived, was deleted, no longer exists",
    ),
    "W1": ban(r"\btold\b(?! apart)", "reported, shown, returned, known, notified"),
    "W2": hint(
        r"\btells?\b(?! (\w+ )?apart)|\b(lies|lie|lay|lying)\b",
        "reports, shows, determines; is stored in",
    ),
    "W3": ban(
        r"\b(stands?|stood)\b(?! (for|by|alone|still|out|in for)\b)",
        "is, is in, appears, is listed, is stored",
    ),
    "W4": ban(r"\banew\b", "again; re- (recompute, recreate, restart)"),
    "W5": ban(r"\bbesides?\b", "next to, in addition to, in parallel with, and"),
    "W6": hint(
        r"\bbehind\b(?! (a|the) (proxy|load balancer|firewall))",
        "after; keep 'lags behind'",
    ),
    "W7": ban(
        r"\bmend(s|ed|ing)?\b|\bjudg(e|es|ed|ing|ement|ements)\b",
        "fix, correct; evaluate, validate, classify",
    ),
    "W8": ban(
        r"\bwhoever\b|\bwhom\b|\bsomebody\b|\bnobody\b|\b(doors?|doorkeeper)\b",
        "the actor: another process, a client, no job; listener, authenticator",
    ),
    "W9": ban(
        r"\b(go|goes|went|going|gone) by (?!(it)?self)|"
        r"\bpresent\b(?= (version|run|one|life|job|shape|pipeline|stream|document|state)s?\b)",
        "uses, is based on, is ordered by; current",
    ),
    "W10": ban(r"\btexts\b|\bwhole numbers?\b", "strings; integers"),
    "W11": hint(
        r"\bin force\b|\bgreatest\b|(?<!at )\bleast\b|\bat once\b|\bin order\b(?! (to|of|that)\b)",
        "effective, current; maximum, minimum; immediately, or in one step; in log order, or gracefully",
    ),
    "W12": hint(r"\bways?\b(?! (to|in which)\b)|\bplaces?\b", "path, route, method; sink, position, index, step"),
    "W13": hint(
        r"\b(life|lives)\b|\b(die|dies|died|deaths?)\b",
        "incarnation, lifecycle; exit, crash, failure",
    ),
    "W14": hint(
        r"\b(asks|asked|is asked|are asked)\b|\b(takes?|took|taken|gives?|gave|given)\b|\b(says?|said)\b",
        "query, request, poll; accept, read, use; return, produce; specify, report, show",
    ),
    "W15": hint(
        r"\bput(s|ting)? (\w+ ){0,3}back\b|\bfurther\b|\bmeanwhile\b|\bby turns\b|\bas ever\b|"
        r"\bby (itself|themselves)\b|\b(goes|go|going|went) on\b",
        "requeue, restore; additional; in the meantime; alternately; as before; automatically; continue",
    ),
}
"""Bans fail the check. Hints are printed on request, because they have false positives."""
ALLOWED = {
    "W8": re.compile(r"user nobody\b|\bnobody:|\bdoors? (sensor|switch|contact)"),
}
"""Rule -> text around a match that makes it right."""

BANS = [name for name, rule in RULES.items() if rule.is_ban]


class Text(NamedTuple):
    """A text that a person reads."""

    line: int
    kind: str
    content: str
    """One paragraph in each line."""


class Finding(NamedTuple):
    """A phrase or a sentence that breaks a rule."""

    path: str
    line: int
    rule: str
    kind: str
    excerpt: str

    def __str__(self) -> str:
        instead = RULES[self.rule].instead if self.rule in RULES else f"at most {SENTENCE_WORDS_MAX} words: split it"
        return f"{self.path}:{self.line}: {self.rule}: {self.excerpt} -> {instead}"


# Texts of a file


_ITEM = re.compile(r"\s*([-*+]|\d+\.)\s+")
_MARKUP = re.compile(r"`+[^`\n]+`+")
_LINK = re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])")
_WORD = re.compile(r"[A-Za-z][\w'-]*")
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[A-Z0-9`\"'(*\[]|x\b)|\n")


def joined(lines: Iterable[str]) -> str:
    """Join the lines of each paragraph and of each list item. Return one in each line, with `x` for code."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if not line.strip():
            paragraphs.append([])
        elif item := _ITEM.match(line):
            paragraphs.append([line[item.end() :].strip()])
        else:
            paragraphs[-1].append(line.strip())
    text = "\n".join(" ".join(one) for one in paragraphs if one)
    return _MARKUP.sub("x", _LINK.sub(r"\1", text))


def _without_code(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a docstring, with empty lines instead of indented code blocks."""
    is_code = False
    for before, line in zip(["", *lines], lines, strict=False):
        is_code = line.startswith("    ") and (is_code or not before.strip())
        yield "" if is_code else line


_SQL = re.compile(r"\s*(CREATE|DELETE|INSERT|SELECT|UPDATE|WITH) ")
_DOCUMENT = re.compile(
    r"^(import \w|def \w+\(|(pipeline|stream|lookup|notice): |create (job|lookup|stream|view) |select )", re.MULTILINE
)


def _is_code(value: str | bytes) -> bool:
    """Return True for SQL, and for a document or a program of several lines."""
    text = value if isinstance(value, str) else ""
    return bool(_SQL.match(text) or ("\n" in text.strip() and _DOCUMENT.search(text)))


def python_texts(source: str) -> Iterator[Text]:
    """Yield docstrings, comments, and string literals of three or more words. SQL, documents, and programs are no texts."""
    tree = ast.parse(source)
    docstrings: dict[int, str] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    inner: set[int] = set()
    strings: list[tuple[ast.Constant | ast.JoinedStr, str]] = []
    for node in walk(tree):
        if isinstance(node, _BODIES):
            for before, statement in zip([None, *node.body], node.body, strict=False):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    if before is None:
                        docstrings[id(statement.value)] = DOCSTRING
                    elif isinstance(before, ast.Assign | ast.AnnAssign):
                        docstrings[id(statement.value)] = FIELD
        elif isinstance(node, ast.JoinedStr):
            # The parts of a format string are read with the whole string.
            inner |= {id(part) for part in node.values}
            strings.append((node, "".join(_part(part) for part in node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in inner:
            strings.append((node, node.value if isinstance(node.value, str) else ""))
    for string, value in strings:
        for number in range(string.lineno, (string.end_lineno or string.lineno) + 1):
            first = string.col_offset if number == string.lineno else 0
            last = string.end_col_offset or 0 if number == string.end_lineno else sys.maxsize
            spans.setdefault(number, []).append((first, last))
        if kind := docstrings.get(id(string)):
            yield Text(string.lineno, kind, joined(_without_code(inspect.cleandoc(value).splitlines())))
        elif len(_WORD.findall(value)) >= 3 and " " in value.strip() and not _is_code(value):
            yield Text(string.lineno, MESSAGE, joined(value.splitlines()))
    yield from python_comments(source, spans)


_BODIES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a tree, each before its children. Faster than `ast.walk`, because names have no children."""
    stack = [tree]
    while stack:
        yield (node := stack.pop())
        for value in vars(node).values():
            if isinstance(value, list):
                stack += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.Name | ast.expr_context | ast.operator):
                stack.append(value)


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "x"


def python_comments(source: str, spans: dict[int, list[tuple[int, int]]]) -> Iterator[Text]:
    """Yield the comments. Lines of comments that follow each other are one text. `spans` are the strings by line."""
    block: list[str] = []
    begin = 0
    lines = [(number, line) for number, line in enumerate(source.splitlines(), start=1) if "#" in line]
    for number, line in lines:
        if (at := comment_start(line, spans.get(number, []))) < 0:
            continue
        if block and (line[:at].strip() or number != begin + len(block)):
            yield Text(begin, COMMENT, joined(block))
            block = []
        if line[:at].strip():
            yield Text(number, COMMENT, joined([line[at:].lstrip("# ")]))
        else:
            begin = begin if block else number
            is_code = line[at:].lstrip("#").startswith("   ")
            block.append("" if is_code else line[at:].lstrip("# "))
    if block:
        yield Text(begin, COMMENT, joined(block))


def comment_start(line: str, spans: list[tuple[int, int]]) -> int:
    """Return the column of the first `#` outside of strings, or -1. Columns of strings count bytes."""
    at = line.find("#")
    while at >= 0:
        column = len(line[:at].encode())
        if not any(first <= column < last for first, last in spans):
            return at
        at = line.find("#", at + 1)
    return -1


_FENCE = re.compile(r"\s*(```|~~~)")


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield paragraphs, list items, headings, and table cells, without code."""
    block: list[str] = []
    begin, fence, before = 0, "", ""
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
            line = ""
        elif fence or line.lstrip().startswith("<"):
            line = ""
        elif re.match(r"    +\S", line) and not before.strip() and not _ITEM.match(line):
            # A block of code that is indented. Its other lines follow, because `before` stays empty.
            continue
        if line.startswith(("#", "|")) or _ITEM.match(line) or not line.strip():
            if block:
                yield Text(begin, PROSE, joined(block))
            block = []
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                if cell.strip(" -:"):
                    yield Text(number, PROSE, joined([cell.strip()]))
        elif line.strip():
            begin = begin if block else number
            block.append(line.lstrip("#> ") if line.startswith(("#", ">")) else line)
        before = line


_JAVASCRIPT = re.compile(
    r"/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)|(?P<quote>['\"])(?P<text>(?:\\.|(?!(?P=quote))[^\\\n])*)(?P=quote)"
    r"|`(?P<template>(?:\\.|[^`\\])*)`",
    re.DOTALL,
)


def javascript_texts(source: str) -> Iterator[Text]:
    """Yield comments, and strings and templates of three or more words. Tags and expressions are left out."""
    for match in _JAVASCRIPT.finditer(source):
        number = source.count("\n", 0, match.start()) + 1
        if comment := match["block"] or match["line"]:
            yield Text(number, COMMENT, joined(line.strip(" */!") for line in comment.splitlines()))
            continue
        content = match["text"] or match["template"] or ""
        content = re.sub(r"<[^>]*>", "\n", re.sub(r"\$\{[^}]*\}", "x", content))
        if len(_WORD.findall(content)) >= 3 and " " in content.strip():
            yield Text(number, MESSAGE, joined(content.splitlines()))


def html_texts(source: str) -> Iterator[Text]:
    """Yield the paragraphs between tags."""
    plain = re.sub(r"<(script|style)\b.*?</\1>", lambda tag: "\n" * tag[0].count("\n"), source, flags=re.DOTALL)
    for number, line in enumerate(re.sub(r"<[^>]*>", " ", plain).splitlines(), start=1):
        if line.strip():
            yield Text(number, PROSE, joined([line]))


def remark_texts(source: str) -> Iterator[Text]:
    """Yield the comments of a file whose comments begin with `#`."""
    yield from python_comments(source, {})


READERS = {
    ".py": python_texts,
    ".md": markdown_texts,
    ".js": javascript_texts,
    ".html": html_texts,
    ".yaml": remark_texts,
    ".yml": remark_texts,
}


# Findings


def check_text(text: Text, path: str, *, hints: bool = False) -> Iterator[Finding]:
    """Yield the findings of one text."""
    small = text.content.lower()
    for name, rule in RULES.items():
        if text.kind not in rule.scope or not (rule.is_ban or hints):
            continue
        for match in rule.pattern.finditer(small if rule.ignores_case else text.content):
            around = text.content[max(0, match.start() - 25) : match.end() + 25].replace("\n", " ")
            if name not in ALLOWED or not ALLOWED[name].search(around):
                yield Finding(path, text.line, name, text.kind, f"... {around} ...")
    for sentence in _END.split(text.content):
        if sentence and (words := len(sentence.split())) > SENTENCE_WORDS_MAX:
            yield Finding(path, text.line, LONG, text.kind, f"{words} words: {sentence[:70]} ...")


def check_source(source: str, path: str, *, hints: bool = False) -> list[Finding]:
    """Return the findings of a file, in the order of its lines. The end of `path` selects the language."""
    texts = READERS[Path(path).suffix](source)
    return sorted((one for text in texts for one in check_text(text, path, hints=hints)), key=lambda one: one.line)


def check_file(path: str, hints: bool = False) -> list[Finding]:
    return check_source((ROOT / path).read_text(encoding="utf-8"), path, hints=hints)


def files() -> list[str]:
    """Return the paths of all files that the check reads, relative to the root of the repository."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("*.yml")]
    for tree in TREES:
        for folder, folders, names in os.walk(ROOT / tree):
            folders[:] = [name for name in folders if name not in ("__pycache__", "node_modules")]
            paths += [Path(folder, name) for name in names]
    return sorted(
        name
        for path in paths
        if path.suffix in READERS and not (name := path.relative_to(ROOT).as_posix()).startswith(EXEMPT)
    )


def check_files(paths: list[str], *, hints: bool = False) -> list[Finding]:
    """Return the findings of the files, in the order of the paths."""
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as workers:
        found = workers.map(check_file, paths, [hints] * len(paths), chunksize=64)
        return [finding for findings in found for finding in findings]


# Limits


class Limit(NamedTuple):
    """Findings that a path may still have."""

    bans: int
    long: int


def read_limits(text: str) -> dict[str, Limit]:
    """Return the limits by path. A row is: path, number of bans, number of long sentences."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {path: Limit(int(bans), int(long)) for path, bans, long in rows}


def owner(path: str, limits: Iterable[str]) -> str:
    """Return the longest path of the table that contains the file; empty if none does."""
    return max((one for one in limits if path == one or path.startswith(f"{one}/")), key=len, default="")


def counted(findings: Iterable[Finding], limits: Iterable[str]) -> dict[str, Limit]:
    """Return the number of findings by the path of the table that contains them."""
    rows = list(limits)
    counts = Counter((owner(one.path, rows), one.rule == LONG) for one in findings)
    return {path: Limit(counts[path, False], counts[path, True]) for path in [*rows, ""]}


def compare(counts: dict[str, Limit], limits: dict[str, Limit], root: Path = ROOT) -> list[str]:
    """Return a message for each path that has more findings than it may have, or that doesn't exist."""
    messages = [
        f"{path}: no such file or folder; correct its row" for path in limits if path and not (root / path).exists()
    ]
    for path, count in counts.items():
        limit = limits.get(path, Limit(0, 0))
        for what, number, most in (("ban", count.bans, limit.bans), ("long sentence", count.long, limit.long)):
            if number > most:
                where = path or "files that no row of scripts/words_limits.txt contains"
                messages.append(f"{where}: {number} {what}{'s' * (number != 1)}, at most {most} allowed")
    return messages


def exceeding(findings: list[Finding], counts: dict[str, Limit], limits: dict[str, Limit]) -> list[Finding]:
    """Return the findings of the paths that have more bans, or more long sentences, than they may have."""
    rows, found = list(limits), []
    for one in findings:
        path, is_long = owner(one.path, rows), one.rule == LONG
        if counts[path][is_long] > limits.get(path, Limit(0, 0))[is_long]:
            found.append(one)
    return found


def lowered(text: str, counts: dict[str, Limit]) -> str:
    """Return the table with each limit lowered to its count. Comments and the order of the rows stay."""

    def lower(line: str) -> str:
        if not line.strip() or line.startswith("#"):
            return line
        path, bans, long = line.split()
        count = counts[path]
        return f"{path:45} {min(int(bans), count.bans):5} {min(int(long), count.long):5}"

    return "".join(f"{lower(line)}\n" for line in text.splitlines())


def table(findings: list[Finding], limits: Iterable[str]) -> str:
    """Return the counts of all rules by path of the table."""
    rows = list(limits)
    counts = Counter((owner(one.path, rows), one.rule) for one in findings)
    rules = [name for name in [*RULES, LONG] if any(rule == name for _, rule in counts)]
    lines = [f"{'path':42}" + "".join(f"{name:>5}" for name in rules)]
    lines += [f"{path:42}" + "".join(f"{counts[path, name]:5}" for name in rules) for path in [*rows, ""]]
    total = Counter(one.rule for one in findings)
    return "\n".join([*lines, f"{'all':42}" + "".join(f"{total[name]:5}" for name in rules)])


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if a count is higher than its limit."""
    parser = argparse.ArgumentParser(description="Check that the texts of the project are plain English.")
    parser.add_argument("paths", nargs="*", help="files and folders whose findings are printed")
    parser.add_argument("--hints", action="store_true", help="print also phrases that are only suspicious")
    parser.add_argument("--lower", action="store_true", help="write the counts that fell into words_limits.txt")
    parser.add_argument("--counts", action="store_true", help="print a table of all counts by path and rule")
    options = parser.parse_args(arguments)
    text = LIMITS.read_text(encoding="utf-8")
    limits = read_limits(text)
    if options.paths:
        wanted = [Path(one).resolve().relative_to(ROOT).as_posix() for one in options.paths]
        findings = check_files([one for one in files() if owner(one, wanted)], hints=options.hints)
        print("\n".join(map(str, findings)) or "no findings")
        return 1 if any(one.rule == LONG or RULES[one.rule].is_ban for one in findings) else 0
    findings = check_files(files(), hints=options.hints)
    if options.counts:
        print(table(findings, limits))
        return 0
    counts = counted(findings, limits)
    if options.lower:
        LIMITS.write_text(lowered(text, counts), encoding="utf-8")
    for message in (messages := compare(counts, limits)):
        print(message)
    if messages:
        print("\n".join(map(str, exceeding(findings, counts, limits))))
        print("Rewrite the new text")
    elif any(counts[path] < limit and counts[path] != limit for path, limit in limits.items()) and not options.lower:
        print("Some counts fell; to keep them low, run python scripts/words_check.py --lower")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
