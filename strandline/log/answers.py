"""Answers to one question about several topics: each topic has its own answer, or its own error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from strandline.core.errors import StrandlineError

T = TypeVar("T")

Answers = dict[str, T | StrandlineError]
"""Topic -> its answer, or the error of this topic."""


def answer_of(answers: Mapping[str, T | StrandlineError], topic: str) -> T:
    """Return the answer of the topic, or raise its error."""
    found = answers[topic]
    if isinstance(found, StrandlineError):
        raise found
    return found


def answers_of(topics: Iterable[str], ask: Callable[[str], T]) -> Answers[T]:
    """Call `ask` with each topic, and collect what it returns or raises."""
    found: Answers[T] = {}
    for topic in topics:
        try:
            found[topic] = ask(topic)
        except StrandlineError as error:
            found[topic] = error
    return found


def good(answers: Mapping[str, T | StrandlineError]) -> dict[str, T]:
    """Return the answers without the errors."""
    return {topic: found for topic, found in answers.items() if not isinstance(found, StrandlineError)}
