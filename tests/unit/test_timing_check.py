"""The check for tests that depend on time by chance: with planted cases, with right ones, and on the tree."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.timing_check import check_text, check_tree

ROOT = Path(__file__).parents[2]
WRONG = {
    "sleep": [
        "time.sleep(1)",
        "await asyncio.sleep(0.1)",
        "sleep(seconds)",
        "time.sleep(1)  # sleeps:",
        "time.sleep(1)  # long enough",
    ],
    "clock": [
        "while time.monotonic() < deadline:\n    look()",
        "while not done and time.time() < until_s:\n    look()",
        "while not is_so():\n    assert time.monotonic() < deadline",
        "while True:\n    if is_so():\n        break\n    if loop.time() > deadline:\n        raise AssertionError",
        "assert time.monotonic() - began_s < 5",
        "assert 0 <= time.perf_counter() - began_s <= LIMIT_S",
    ],
    "limit": [
        "process.wait(60)",
        "process.communicate(timeout=DEADLINE_S)",
        "future.result(30)",
        "thread.join(DEADLINE_S)",
        "subprocess.run(command, timeout=60, check=True)",
        "await asyncio.wait_for(task, 5)",
        "async with asyncio.timeout(30):\n    await task",
    ],
    "once": [
        "writer.write(letters)\nsecond = status.dead_letters(job, -1, 10)[1]",
        "assert writer.write(letters) == 1\nassert letters.page(job, ANY, -1, 10).letters[0].offset == 3",
        "producer.flush()\n(message,) = consumer.consume(1, 5.0)",
        "client.post('/i/_doc')\nhits = client.post('/i/_search').json()['hits']['hits']",
        "if True:\n    writer.write(letters)\n    first = status.dead_letters(job, -1, 1)[0]",
    ],
}
RIGHT = [
    "time.sleep(1)  # sleeps: the instant of the kill",
    "time.sleep(\n    1\n)  # sleeps: the instant of the kill",
    "await asyncio.sleep(0)",
    "lock.sleep(1)",
    "wait_until(is_there)",
    "while waiting:\n    patience.check(len(waiting))\n    patience.pause()",
    "while time.monotonic() < until_s:  # sleeps: the load lasts so long\n    send()",
    "while more:\n    began_s = time.monotonic()\n    took_s.append(time.monotonic() - began_s)",
    "while more:\n    if time.monotonic() - said_s > 60:\n        say('still waiting')",
    "def look():\n    while more:\n        asks(lambda: time.monotonic() < until_s)",
    "assert time.monotonic() - began_s < stretched(5)",
    "assert time.monotonic() - began_s >= 0.5",
    "assert time.process_time() - began_s < 5",
    "process.wait(stretched(60))",
    "while not is_over.wait(0.1):\n    send()",
    "', '.join(NAMES)",
    "os.path.join(DIRECTORY, NAME)",
    "with pytest.raises(TimeoutError):\n    again.result(3)",
    "try:\n    process.wait(5)\nexcept subprocess.TimeoutExpired:\n    process.kill()",
    "run(5)",
    "writer.write(letters)\nwait_until_readable(kafka, topic)\nsecond = status.dead_letters(job, -1, 10)[1]",
    "lab.write_and_wait(letters)\nsecond = status.dead_letters(job, -1, 10)[1]",
    "producer.flush()\n(message,) = read_messages(kafka, topic)",
    "client.post('/i/_doc')\nclient.post('/i/_refresh')\nhits = client.post('/i/_search').json()['hits']['hits']",
    "first = status.dead_letters(job, -1, 1)[0]",
]


def rules_of(text: str) -> list[str]:
    body = "\n".join(f"    {line}" for line in dedent(text).splitlines())
    return [one.rule for one in check_text(f"async def test_something():\n{body}\n", Path("tests/planted.py"))]


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in WRONG.items() for text in texts])
def test_a_planted_case_is_found(rule: str, text: str) -> None:
    assert set(rules_of(text)) == {rule}


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_test_is_not_flagged(text: str) -> None:
    assert rules_of(text) == []


def test_a_finding_names_the_line_and_the_remedy() -> None:
    (found,) = check_text("import time\n\ntime.sleep(1)\n", Path("tests/planted.py"))
    assert str(found).startswith("tests/planted.py:3: sleep: a sleep; wait with wait_until")


@pytest.mark.long
def test_the_tree_passes() -> None:
    assert [str(one) for one in check_tree(ROOT, ["tests"])] == []
