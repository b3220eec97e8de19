"""What the nemesis draws, in which order it does the faults of a round, and from when on results have to flow."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import psutil
import pytest

from tests.support.chaos.faults import End, Fault, Kill, Pause, Target
from tests.support.chaos.machine import WallClock
from tests.support.chaos.nemesis import TOGETHER_MAX, Nemesis
from tests.support.waiting import wait_until


class Scene:
    """A stack that only notes what is done to it."""

    postgresql = small_disk = index_proxy = None
    jobs: ClassVar[list[object]] = [SimpleNamespace(name="chaos")]
    services: ClassVar[list[str]] = ["control"]
    ledger_proxies: ClassVar[list[object]] = []
    left_out: ClassVar[dict[str, str]] = {}
    clocks: ClassVar[dict[str, WallClock]] = {}

    def __init__(self) -> None:
        self.done: list[str] = []
        self.planned = 7
        self.prepared = 0
        self.asked_after: list[dict[str, int]] = []

    def slices_last(self) -> dict[str, int]:
        self.done.append("look")
        return {"chaos": self.planned}

    def mend_all(self, parts) -> None:
        self.done += [f"mend {part}" for part in parts]

    def note_kafka_away(self, since_ms: int) -> None:
        self.done.append("kafka was away")

    def wait_for_results(self, *, after_slices: dict[str, int], since_s: float, timeout_s: float) -> float:
        self.asked_after.append(after_slices)
        return time.monotonic()


class Noted(Fault):
    def prepare(self, stack) -> None:
        stack.prepared += 1
        assert not any(done.startswith("begin") for done in stack.done)

    def begin(self, stack) -> None:
        stack.done.append(f"begin {self.kind}")
        stack.planned += 1

    def end(self, stack) -> None:
        stack.done.append(f"end {self.kind}")
        stack.planned += 1


def test_no_two_faults_of_a_round_touch_the_same_and_every_kind_comes_before_any_comes_again():
    nemesis = Nemesis(Scene(), 1)
    seen: list[str] = []
    sizes = set()
    for _ in range(300):
        faults, counted = nemesis.draw(1_000)
        touched = [thing for fault in faults for thing in fault.touches]
        assert len(touched) == len(set(touched)), [fault.name for fault in faults]
        assert counted <= len(faults) <= TOGETHER_MAX
        sizes.add(len(faults))
        seen += [fault.name for fault in faults if fault.kind not in ("pause", "lose")]
    assert sizes == {1, 2, 3}
    counts = [seen.count(name) for name in {*seen}]
    # One that was put back may be drawn again with the next bag, at most once each time.
    assert len(counts) == len(nemesis.names) and max(counts) - min(counts) <= 1 + TOGETHER_MAX


def test_in_a_drain_something_is_killed_that_the_drain_needs_and_started_again(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as child:
        killed = [Target("gateway", lambda _: [], part="gateway-http"), Target("kafka", lambda _: [child.pid], "kafka")]
        monkeypatch.setattr("tests.support.chaos.nemesis.targets", lambda *_: killed)
        monkeypatch.setattr("tests.support.chaos.nemesis.DRAIN_KILL_S", (0.0, 0.0))
        scene = Scene()
        assert Nemesis(scene, 1, only=["upgrade"]).break_drain() == "kill kafka"
        assert child.wait(10) == -signal.SIGKILL
    assert scene.done == ["mend kafka", "kafka was away"]


def test_the_same_seed_draws_the_same():
    def draw(seed: int) -> list[tuple[str, float]]:
        nemesis = Nemesis(Scene(), seed)
        return [(fault.name, fault.hold_s) for _ in range(30) for fault in nemesis.draw(1_000)[0]]

    assert draw(1) == draw(1) != draw(2)


def test_one_at_a_time_and_only_what_is_named():
    nemesis = Nemesis(Scene(), 1, only=["index-cut", "kafka"], together_max=1)
    drawn = [nemesis.draw(1_000)[0] for _ in range(100)]
    assert all(len(faults) == 1 for faults in drawn)
    assert {faults[0].name for faults in drawn} == {"index cut", "kill kafka", "pause kafka"}
    with pytest.raises(ValueError, match="nothing"):
        Nemesis(Scene(), 1, only=["nothing"])


def test_what_is_held_is_held_together_and_flow_counts_from_when_all_is_let_go():
    scene = Scene()
    late = Noted("late", "", end_when=End.WHEN_OTHERS_ENDED)
    kill = Noted("kill", "", is_violent=True, parts_killed=["kafka", "control"])
    short, long = (Noted(f"{s} s", "", s, End.AFTER_HOLD) for s in (0.02, 0.05))
    one = Nemesis(scene, 1).break_together(1, [late, kill, long, short])
    assert scene.done[:4] == ["begin late", "begin 0.05 s", "begin 0.02 s", "begin kill"]
    assert sorted(scene.done[4:-2]) == ["end 0.02 s", "end 0.05 s", "kafka was away", "mend control", "mend kafka"]
    assert scene.done.index("end 0.02 s") < scene.done.index("end 0.05 s")
    assert scene.done[-2:] == ["end late", "look"]
    assert scene.asked_after == [{"chaos": scene.planned}] and one.held_s >= 0.05 and scene.prepared == 4


def test_after_a_kill_flow_counts_from_the_kill():
    """A slice that was planned before the server was there again may be the first with results."""
    scene = Scene()
    one = Nemesis(scene, 1).break_together(1, [Noted("kill", "", is_violent=True, parts_killed=["control"])])
    assert scene.done == ["begin kill", "look", "mend control"] and scene.asked_after == [{"chaos": 8}]
    assert one.held_s == 0.0


def test_a_stack_that_cannot_do_a_kind_leaves_it_out():
    assert not {"clock-step", "disk-full", "ledger-cut", "postgresql"} & {*Nemesis(Scene(), 1).names}
    able = Scene()
    able.small_disk = SimpleNamespace()
    able.ledger_proxies = [SimpleNamespace()]
    able.clocks = {"clock-step": SimpleNamespace(), "kafka-clock": SimpleNamespace()}
    assert {"clock-step", "kafka-clock", "disk-full", "ledger-cut"} <= {*Nemesis(able, 1).names}


def test_of_several_control_services_each_is_a_target_and_the_leader_may_stay_away_or_be_cut_off():
    scene = Scene()
    assert {"control", "control-2", "leader-away"} & {*Nemesis(scene, 1).names} == {"control"}
    scene.services, scene.ledger_proxies = ["control", "control-2"], [SimpleNamespace(), SimpleNamespace()]
    assert {"control", "control-2", "leader-away"} <= {*Nemesis(scene, 1).names}
    nemesis = Nemesis(scene, 1, only=["ledger-cut"])
    assert {nemesis.draw(1_000)[0][0].name for _ in range(40)} >= {"ledger cut control", "ledger cut control-2"}


def test_a_process_that_goes_with_another_fault_of_the_round_is_not_waited_for(monkeypatch):
    """The supervisor starts a runner again only when the ledger answers, and that may be what the other fault holds."""
    monkeypatch.setattr("tests.support.chaos.faults.GONE_S", 0.05)
    there = [1 << 22]  # a pid that no process has
    kill = Kill(Target("runner-python", lambda _: there))
    kill.prepare(Scene())
    kill.begin(Scene())
    assert kill.name == "kill runner-python, which was gone" and kill.parts_killed == []


def test_a_process_is_held_and_let_go():
    with subprocess.Popen(["sleep", "60"]) as child:
        hold = Pause(Target("control", lambda _: [child.pid], part="control"), 1.0)
        hold.begin(Scene())
        wait_until(lambda: psutil.Process(child.pid).status(), lambda status: status == psutil.STATUS_STOPPED, "held")
        hold.end(Scene())
        wait_until(lambda: psutil.Process(child.pid).status(), lambda status: status != psutil.STATUS_STOPPED, "let go")
        kill = Kill(Target("control", lambda _: [child.pid], part="control"))
        kill.begin(Scene())
        assert kill.parts_killed == ["control"] and child.wait(10) == -signal.SIGKILL


def test_a_server_that_cannot_start_while_another_fault_is_held_starts_when_it_is_let_go():
    """A gateway needs the ledger to start, and the ledger may be what is cut."""
    scene = Scene()
    may_start = threading.Event()

    class Held(Noted):
        def end(self, stack) -> None:
            super().end(stack)
            may_start.set()

    def mend_all(parts) -> None:
        assert may_start.wait(10), "nothing was let go meanwhile"

    scene.mend_all = mend_all
    kill = Noted("kill", "", is_violent=True, parts_killed=["gateway-http"])
    Nemesis(scene, 1).break_together(1, [kill, Held("cut", "", 0.02, End.AFTER_HOLD)])
    assert "end cut" in scene.done
