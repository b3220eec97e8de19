"""Print the yardsticks of the code's structure: sizes by package, the engine, and tests of kinds outside of their folders.

`make yardsticks` prints them all. Import directions and circles are tested by `make check`.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CODE = ROOT / "strandline"
ENGINE = ("processing/slices", "processing/source", "processing/emission", "processing/run", "processing/spark")
"""A developer who fixes a recovery must know these folders."""
OF_KINDS = ("processing/kinds", "processing/operators/kinds", "processing/pipelines/joins")
"""Folders that may ask which kind of step or window something is."""
BASES = {"RowStep", "Projection", "DuplicateFilter", "Stage", "WindowShape"}
"""Contracts of kinds. The engine may ask for `Projection` and `DuplicateFilter`, which are contracts, too."""

NAMED_BY = (".windows.kind", "stage.kind", "step.kind", ".keyword")
"""Ends of expressions whose comparison with a name is a test of a kind, too."""


class Size(NamedTuple):
    """Lines of a file, or of several."""

    files: int
    code: int
    docs: int
    """Docstrings and comments."""
    imports: int


def size_of(path: Path) -> Size:
    """Return the lines of a file. A line counts once: as an import, as docs, or as code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = {
        line for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for line in lines_of(node)
    }
    docs = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in lines_of(node)
    }
    code: set[int] = set()
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
                docs.add(token.start[0])
            elif token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
                code |= set(range(token.start[0], token.end[0] + 1))
    return Size(1, len(code - docs - imports), len(docs), len(imports - docs))


def lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def added(sizes: Iterator[Size]) -> Size:
    return Size(*map(sum, zip(Size(0, 0, 0, 0), *sizes, strict=True)))


def classes_of_kinds() -> set[str]:
    """Return the names of all classes that are derived from a step, a stage, or the shape of windows."""
    bases: dict[str, set[str]] = {}
    for path in CODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(name for one in node.bases if (name := ast.unparse(one)))
    found = set(BASES)
    while more := {name for name, of in bases.items() if name not in found and of & found}:
        found |= more
    return found - BASES


def tests_of_kinds() -> list[str]:
    """Return where a class of a kind is asked for, outside of the folders of kinds."""
    classes, found = classes_of_kinds(), []
    for path in sorted(CODE.rglob("*.py")):
        place = str(path.relative_to(CODE))
        if place.startswith(OF_KINDS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)} & classes
                if asked:
                    found.append(f"{place}:{node.lineno} {', '.join(sorted(asked))}")
            elif isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(NAMED_BY):
                found.append(f"{place}:{node.lineno} {ast.unparse(node)}")
    return found


def main() -> None:
    sizes: dict[str, list[Size]] = {}
    for path in sorted(CODE.rglob("*.py")):
        parts = path.relative_to(CODE).parts
        package = "/".join(
            parts[:2] if parts[0] == "processing" and len(parts) > 2 else parts[:1] if len(parts) > 1 else "."
        )
        sizes.setdefault(package, []).append(size_of(path))
    print(f"{'package':24} {'files':>6} {'code':>7} {'docs':>7} {'imports':>8}")
    for package, of in sizes.items():
        print(f"{package:24} {'{:6} {:7} {:7} {:8}'.format(*added(iter(of)))}")
    every = added(one for of in sizes.values() for one in of)
    print(f"{'all':24} {'{:6} {:7} {:7} {:8}'.format(*every)}")
    engine = added(size_of(path) for folder in ENGINE for path in (CODE / folder).rglob("*.py"))
    print(
        f"\nengine ({', '.join(Path(one).name for one in ENGINE)}): {sum(engine[1:])} lines, {engine.code} of them code"
    )
    words = Counter(
        word for path in CODE.rglob("*.py") for word in re.findall(r"\bfurther\w*", path.read_text(encoding="utf-8"))
    )
    print(f"occurrences of `further`: {words.total()}")
    found = tests_of_kinds()
    print(f"type tests of kinds outside of their folders: {len(found)}")
    for one in found:
        print(f"  {one}")


if __name__ == "__main__":
    main()
