"""The draws of the nemesis, the order of the faults of a round, and when results must flow again."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import psutil
import pytest

from tests.support.chaos.acts import Backfill
from tests.support.chaos.clocks import WallClock
from tests.support.chaos.faults import End, Fault, Kill, Pause, Target
from tests.support.chaos.kinds import RestartWithWrongClock
from tests.support.chaos.nemesis import TOGETHER_MAX, Nemesis
from tests.support.waiting import stretched, wait_until


class Scene:
    """A stack that only notes what is done to it."""

    postgresql = small_disk = index_proxy = None
    job_set = SimpleNamespace(has_lookup=False, gateways=("http",))
    jobs: ClassVar[list[object]] = [SimpleNamespace(name="chaos", stages=("short",))]
    services: ClassVar[list[str]] = ["control"]
    ledger_proxies: ClassVar[list[object]] = []
    left_out: ClassVar[dict[str, str]] = {}
    clocks: ClassVar[dict[str, dict[str, WallClock]]] = {}

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
        seen += [fault.name.partition(",")[0] for fault in faults if fault.kind not in ("pause", "lose")]
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
        assert child.wait(stretched(10)) == -signal.SIGKILL
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
    able.clocks = {"clock-step": {"": SimpleNamespace()}, "kafka-clock": {"": SimpleNamespace()}}
    assert {"clock-step", "kafka-clock", "disk-full", "ledger-cut"} <= {*Nemesis(able, 1).names}


def test_of_several_control_services_each_is_a_target_and_the_leader_may_stay_away_or_be_cut_off():
    scene = Scene()
    assert {"control", "control-2", "leader-away"} & {*Nemesis(scene, 1).names} == {"control"}
    scene.services, scene.ledger_proxies = ["control", "control-2"], [SimpleNamespace(), SimpleNamespace()]
    assert {"control", "control-2", "leader-away"} <= {*Nemesis(scene, 1).names}
    nemesis = Nemesis(scene, 1, only=["ledger-cut"])
    assert {nemesis.draw(1_000)[0][0].name for _ in range(40)} >= {"ledger cut control", "ledger cut control-2"}


def test_a_clock_is_set_or_drifts_and_kafkas_is_always_set():
    """One of several control services is drawn, which can restart with its clock."""
    scene = Scene()
    scene.services = ["control", "control-2"]
    scene.clocks = {
        "runner-clock": {"": SimpleNamespace()},
        "kafka-clock": {"": SimpleNamespace()},
        "control-clock": {"control": SimpleNamespace(), "control-2": SimpleNamespace()},
    }
    drawn = {kind: names_of(scene, kind) for kind in scene.clocks}
    assert {"runner clock -45 s", "runner clock x1.05", "runner clock x0.8"} <= drawn["runner-clock"]
    assert {"kafka clock +21600 s", "kafka clock +21600 s x1.2"} <= drawn["kafka-clock"]
    assert all("600 s" in name for name in drawn["kafka-clock"])
    assert {"control clock control -21600 s", "control clock control-2 x0.95, control-2 restarted"} <= drawn[
        "control-clock"
    ]

    scene.clocks = {"control-clock": {"": SimpleNamespace()}}
    drawn = names_of(scene, "control-clock")
    assert {
        "control clock +86400 s",
        "control clock x1.2, control restarted",
        "control clock x1.2, control-2 restarted",
    } <= drawn


def names_of(scene: Scene, kind: str) -> set[str]:
    nemesis = Nemesis(scene, 1, only=[kind], together_max=1)
    drawn = [nemesis.draw(1_000)[0] for _ in range(400)]
    return {fault.name for faults in drawn for fault in faults if fault.kind not in ("pause", "lose")}


def test_of_several_jobs_any_is_stopped_upgraded_or_computed_anew():
    scene = Scene()
    scene.jobs = [SimpleNamespace(name=name, stages=("short",)) for name in ("chaos", "chaos-second", "chaos-third")]
    for kind in ("stop-and-start", "upgrade", "backfill"):
        said = {name.partition(",")[0] for name in names_of(scene, kind)}
        assert said == {f"{kind.replace('-', ' ')} {one.name}" for one in scene.jobs}


def test_a_control_service_that_begins_anew_with_a_wrong_clock_is_there_before_the_clock_is_right():
    scene = Scene()
    clock = SimpleNamespace(set=lambda ahead_s, rate=1.0: scene.done.append(f"clock {ahead_s:+} x{rate:g}"))
    scene.clocks = {"control-clock": {"control-2": clock}}

    def mend_all(parts) -> None:
        time.sleep(0.1)  # sleeps: as long as a start takes
        Scene.mend_all(scene, parts)

    scene.mend_all = mend_all
    with subprocess.Popen(["sleep", "60"]) as child:
        scene.named = lambda name: [child.pid] if name == "control-2" else []
        fault = RestartWithWrongClock("control-2", "control-2", 0.0, 21_600, 1.05)
        Nemesis(scene, 1).break_together(1, [fault])
        assert child.wait(stretched(10)) == -signal.SIGKILL
    assert scene.done == ["clock +21600 x1.05", "mend control-2", "clock +0 x1", "look"]


class Backfilled(Scene):
    """A job with one backfill, which reaches `points` one after the other, one per query."""

    speed = 20

    def __init__(self, *points: str) -> None:
        super().__init__()
        self.points = [*points]
        self.armed, self.fired = "", False

    def ask_ledger(self, statement: str) -> list[dict[str, int]]:
        if "FROM backfills" in statement:
            return [{"count": len(self.points)}]
        return [{"first": 0, "last": 1_000_000}]

    def arm(self, orders: str) -> None:
        self.armed, self.fired = orders, False
        self.done.append(orders)

    def has_fired(self) -> bool:
        if not self.fired and self.points:
            self.fired = f"{self.points.pop(0)}=kill" in self.armed
        return self.fired


def test_a_backfill_is_killed_at_each_failpoint_that_it_comes_to(monkeypatch):
    monkeypatch.setattr("tests.support.chaos.acts.ask", lambda stack, what, order: stack.done.append(what))
    scene = Backfilled("backfill.begun", "backfill.before_swap")
    fault = Backfill("chaos", 0.0, None, ["backfill.begun", "backfill.swapped"])
    fault.begin(scene)
    fault.end(scene)
    note = "*=note"
    killed = ["backfill.begun=kill,*=note", "backfill.swapped=kill,*=note"]
    assert [one for one in scene.done if one != "to backfill"] == [killed[0], note, killed[1], note]
    assert scene.done.index("to backfill") > 0, "it may come to the first at once"
    assert fault.missed == ["backfill.swapped"] and fault.name.endswith("never came to backfill.swapped")


def test_a_failpoint_of_a_backfill_that_is_asked_for_must_be_reached(monkeypatch):
    monkeypatch.setattr("tests.support.chaos.acts.ask", lambda stack, what, order: None)
    monkeypatch.setattr(Backfill, "prepare", lambda self, stack: None)
    (one,) = Nemesis(Backfilled("backfill.swapped"), 1).fail_at(["backfill.swapped"])
    assert str(one).startswith("round 1: backfill chaos, killed at backfill.swapped")
    with pytest.raises(AssertionError, match=r"never came to backfill\.swapped"):
        list(Nemesis(Backfilled("backfill.begun"), 1).fail_at(["backfill.swapped"]))


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
        assert kill.parts_killed == ["control"] and child.wait(stretched(10)) == -signal.SIGKILL


def test_a_server_that_cannot_start_while_another_fault_is_held_starts_when_it_is_let_go():
    """A gateway needs the ledger to start, and the ledger may be what is cut."""
    scene = Scene()
    may_start = threading.Event()

    class Held(Noted):
        def end(self, stack) -> None:
            super().end(stack)
            may_start.set()

    def mend_all(parts) -> None:
        assert may_start.wait(stretched(10)), "nothing was let go meanwhile"

    scene.mend_all = mend_all
    kill = Noted("kill", "", is_violent=True, parts_killed=["gateway-http"])
    Nemesis(scene, 1).break_together(1, [kill, Held("cut", "", 0.02, End.AFTER_HOLD)])
    assert "end cut" in scene.done
