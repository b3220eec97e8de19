"""Print the yardsticks of the code's structure: sizes by package, the engine, and tests of kinds outside of their folders.

`make yardsticks` prints them all. `make check` calls the script with `--check`, which fails if a number exceeds its limit.
Import directions and circles are tested by `lint-imports`, also in `make check`.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CODE = ROOT / "strandline"
ENGINE = ("processing/slices", "processing/source", "processing/emission", "processing/run", "processing/spark")
"""A developer who fixes a recovery must know these folders."""
ENGINE_LINES_MAX = 8_000
"""Maximum lines of code of the engine, without docstrings, comments, and imports."""
OF_KINDS = "processing/kinds"
"""Folder of the kinds. Only modules there may ask which kind of step or window something is."""
BASES = {"RowStep", "Projection", "DuplicateFilter", "Stage", "WindowShape", "AnywhereShape", "StageSpec", "WindowPlan"}
"""Contracts of kinds, which other modules may ask for. `Projection` and `DuplicateFilter` are contracts with the engine."""
NAMED_BY = (".windows.kind", "stage.kind", "step.kind", ".keyword")
"""Ends of expressions whose comparison with a name tests a kind."""
REGISTRY = "processing/pipelines/kind_registry.py"


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


def trees() -> dict[str, ast.Module]:
    """Return path below the package -> its syntax tree."""
    return {
        str(path.relative_to(CODE)): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(CODE.rglob("*.py"))
    }


def classes_of_kinds(definitions: list[ast.ClassDef]) -> set[str]:
    """Return the names of all classes that are derived from a contract of kinds."""
    bases: dict[str, set[str]] = {}
    for node in definitions:
        bases.setdefault(node.name, set()).update(one.id for one in node.bases if isinstance(one, ast.Name))
    found = set(BASES)
    while more := {name for name, of in bases.items() if name not in found and of & found}:
        found |= more
    return found - BASES


def fields_of_kinds(registry: ast.Module) -> dict[str, set[str]]:
    """Return name of a variable -> the fields of it that only one kind has: of a step, and of a window of a document."""
    tables = {
        ast.unparse(node.targets[0]): {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
        for node in registry.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    return {"step": tables["KEYWORDS"], "window": tables["WINDOW_KEYWORDS"]}


def tests_of_kinds() -> list[str]:
    """Return where a module outside of the folder of the kinds asks which kind something is."""
    modules = trees()
    fields, found = fields_of_kinds(modules[REGISTRY]), list[str]()
    definitions: list[ast.ClassDef] = []
    asked: list[tuple[str, int, set[str]]] = []
    for place, tree in modules.items():
        is_of_kinds = place.startswith(OF_KINDS)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                definitions.append(node)
            elif is_of_kinds:
                continue
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked.append(
                    (place, node.lineno, {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)})
                )
            elif isinstance(node, ast.Compare) and _asks_name(node.left):
                if any(_is_name(one) for other in node.comparators for one in ast.walk(other)):
                    found.append(f"{place}:{node.lineno} {ast.unparse(node)}")
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.attr in fields.get(node.value.id, ())
            ):
                found.append(f"{place}:{node.lineno} {ast.unparse(node)}")
    classes = classes_of_kinds(definitions)
    return found + [f"{place}:{line} {', '.join(sorted(one & classes))}" for place, line, one in asked if one & classes]


def _asks_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node).endswith(NAMED_BY)


def _is_name(node: ast.AST) -> bool:
    """Return True for the name of a kind, or for a constant that can hold some. None and the keyword of another step aren't."""
    return (isinstance(node, ast.Constant) and isinstance(node.value, str)) or (
        isinstance(node, ast.Name) and node.id.isupper()
    )


def occurrences_of_further() -> int:
    """Return how often the code has the word, with which second streams and stages were once attached to a first one."""
    return sum(len(re.findall(r"\bfurther\w*", path.read_text(encoding="utf-8"))) for path in CODE.rglob("*.py"))


def engine_size() -> Size:
    """Return the lines of the engine."""
    return added(size_of(path) for folder in ENGINE for path in (CODE / folder).rglob("*.py"))


def check() -> None:
    """Fail if a number exceeds its limit."""
    found, words, lines = tests_of_kinds(), occurrences_of_further(), engine_size().code
    if lines > ENGINE_LINES_MAX:
        print(
            f"the engine has {lines} lines of code, at most {ENGINE_LINES_MAX} are allowed; move what no recovery needs"
        )
    if words:
        print(f"the code has the word `further` {words} times; all inputs of a stage are in one tuple, `inputs`")
    for one in found:
        print(f"strandline/{one}: asks which kind it is; ask its contract, see strandline/{REGISTRY}")
    sys.exit(bool(found or words or lines > ENGINE_LINES_MAX))


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
    engine = engine_size()
    print(
        f"\nengine ({', '.join(Path(one).name for one in ENGINE)}): {sum(engine[1:])} lines, {engine.code} of them code"
    )
    print(f"occurrences of `further`: {occurrences_of_further()}")
    found = tests_of_kinds()
    print(f"type tests of kinds outside of their folders: {len(found)}")
    for one in found:
        print(f"  {one}")


if __name__ == "__main__":
    check() if "--check" in sys.argv[1:] else main()
