"""Questions that several threads ask at about the same time, gathered into one request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(eq=False)
class _Asked(Generic[Q, A]):
    question: Q
    answers: list[A | BaseException] = field(default_factory=list)
    """The answer to the question, or the error of its request. Empty until then."""


class Gathered(Generic[Q, A]):
    """Answers the questions of all threads with few requests.

    One request is under way at a time. Questions that come meanwhile wait for it, and are asked together by the next request. So
    a thread that is alone never waits, and the busier a server is, the more questions a request has. Each answer was requested
    after its question was asked.
    """

    def __init__(self, ask: Callable[[Sequence[Q]], Mapping[Q, A | Exception]], questions_max: int = 100) -> None:
        """`ask`: returns the answer or the error of each of these questions, which are all different. What it raises is the error
        of each of them. `questions_max`: maximum number of questions in a request.
        """
        self._ask, self._questions_max = ask, questions_max
        self._asking = threading.Lock()
        """Held during a request."""
        self._changing = threading.Lock()
        """Guards `_waiting`."""
        self._waiting: list[_Asked[Q, A]] = []

    def answer(self, question: Q) -> A:
        """Return the answer to the question, or raise its error."""
        own: _Asked[Q, A] = _Asked(question)
        with self._changing:
            self._waiting.append(own)
        while not own.answers:
            with self._asking:
                if not own.answers:
                    self._ask_next()
        (answer,) = own.answers
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _ask_next(self) -> None:
        """Ask the questions that have waited longest."""
        with self._changing:
            asked, self._waiting = self._waiting[: self._questions_max], self._waiting[self._questions_max :]
        try:
            found = self._ask(list(dict.fromkeys(one.question for one in asked)))
            answers: list[A | BaseException] = [found[one.question] for one in asked]
        except BaseException as error:
            for one in asked:
                one.answers.append(error)
            if not isinstance(error, Exception):
                raise
            return
        for one, answer in zip(asked, answers, strict=True):
            one.answers.append(answer)
