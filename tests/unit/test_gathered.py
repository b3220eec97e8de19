"""Questions of several threads share requests, and each thread gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.core.gathered import Gathered
from tests.support.waiting import stretched


class Server:
    """Answers a number with its double, and an odd number with an error. Its first request lasts until `go_on` is set."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.is_asked, self.go_on = threading.Event(), threading.Event()
        self.is_away = False

    def ask(self, numbers: Sequence[int]) -> dict[int, int | Exception]:
        self.requests.append(sorted(numbers))
        self.is_asked.set()
        assert self.go_on.wait(stretched(10))
        if self.is_away:
            raise ConnectionError("no answer")
        return {number: ValueError(f"odd: {number}") if number % 2 else 2 * number for number in numbers}


def asked_during_the_first_request(server: Server, gathered: Gathered[int, int], numbers: list[int]) -> list[object]:
    """Ask 0, and meanwhile all of these. Return the answers and errors to these."""

    def answer(number: int) -> object:
        try:
            return gathered.answer(number)
        except Exception as error:  # noqa: BLE001 - it is the answer
            return str(error)

    with ThreadPoolExecutor(len(numbers) + 1) as threads:
        first = threads.submit(answer, 0)
        assert server.is_asked.wait(stretched(10))
        others = [threads.submit(answer, number) for number in numbers]
        while len(gathered._waiting) < len(numbers):
            threading.Event().wait(0.001)
        server.go_on.set()
        first.result(stretched(10))
        return [one.result(stretched(10)) for one in others]


def test_questions_that_come_during_a_request_share_the_next_one() -> None:
    server = Server()
    found = asked_during_the_first_request(server, Gathered(server.ask), [2, 3, 4, 4])
    assert found == [4, "odd: 3", 8, 8]
    assert server.requests == [[0], [2, 3, 4]]


def test_a_request_has_at_most_so_many_questions() -> None:
    server = Server()
    assert asked_during_the_first_request(server, Gathered(server.ask, questions_max=2), [2, 4, 6]) == [4, 8, 12]
    assert list(map(len, server.requests)) == [1, 2, 1]


def test_the_failure_of_a_request_is_that_of_each_question() -> None:
    server = Server()
    server.is_away = True
    assert asked_during_the_first_request(server, Gathered(server.ask), [2, 4]) == ["no answer", "no answer"]


def test_a_later_question_is_asked_again() -> None:
    server = Server()
    server.go_on.set()
    gathered = Gathered(server.ask)
    assert [gathered.answer(2), gathered.answer(2)] == [4, 4]
    assert server.requests == [[2], [2]], "an answer from before the question could be outdated"
    with pytest.raises(ValueError, match="odd: 1"):
        gathered.answer(1)
