"""What the verbs print: answers on stdout, as tables or as JSON; progress on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rich.console import Console

from strandline.services.client import Answer


def show(answer: Answer, as_json: bool, tables: Callable[[], list[Any]]) -> None:
    if as_json:
        print_json(answer)
        return
    console = Console()
    for table in tables():
        console.print(table)


def print_json(answer: Any) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def progress_console(as_json: bool) -> Console:
    """Progress goes to stderr when stdout carries an answer for a machine."""
    return Console(stderr=as_json)
