"""Documents from several files, in YAML or SQL, and from programs, as one text. Each problem keeps its own file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from strandline.core.errors import InvalidDocument, Problem
from strandline.frontends.document_files import with_files

LocateProblem = Callable[[Problem], Problem]
"""Function that returns a problem with its position in the text of its author."""


class JoinedTexts:
    """Documents from several sources as one YAML text, so that they are checked together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._places: list[tuple[int, LocateProblem]] = []
        """Last line before each part, and the function that locates problems in it."""
        self._line = 0

    def add(self, text: bytes, locate: LocateProblem) -> None:
        """Append a text. `locate` gets problems with the lines of this text."""
        self._places.append((self._line, locate))
        self._parts.append(text)
        self._line += text.count(b"\n") + 2

    def add_file(self, file: Path) -> None:
        """Add a YAML or SQL file, with the files that it names. Raises InvalidDocument if this fails."""
        if file.suffix.lower() == ".py":
            raise InvalidDocument(
                [
                    Problem(
                        "is Python, which must be run; let it write a file with PIPELINE.to_yaml() (docs/python.md)",
                        source=str(file),
                    )
                ]
            )
        text = file.read_bytes()
        if file.suffix.lower() != ".sql":
            self.add(
                with_files(text, file), lambda problem: Problem(problem.message, problem.path, str(file), problem.line)
            )
            return
        from strandline.frontends.sql.translation import translate  # only where there is some

        translation = translate(text, str(file))
        self.add(with_files(translation.yaml.encode(), file), translation.locate_in_sql)

    @property
    def text(self) -> bytes:
        """All documents as one text."""
        return b"\n---\n".join(self._parts)

    def located(self, problem: Problem) -> Problem:
        """Return a problem of the joined text with its own file and line."""
        if problem.line is None:
            return problem
        before, locate = next(one for one in reversed(self._places) if problem.line > one[0])
        return locate(Problem(problem.message, problem.path, problem.source, problem.line - before))
