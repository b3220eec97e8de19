"""The fault ladder of the ingest tier at length: `make chaos-ingest KILLS=50`, or `python -m tests.fault.ingest_ladder --help`.

Each rung is a scenario of tests/support/faults/scenarios.py with real processes. Progress goes to the terminal as it is
made; at the end comes a table, and with any violation the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from tests.support.faults import scenarios
from tests.support.faults.gateways import KINDS, GatewayKind
from tests.support.faults.kafka_proxy import Api, cut_request, drop_answer, hold_request, swallow_answer
from tests.support.faults.lab import Lab
from tests.support.faults.scenarios import Outcome, Progress

_DISK_BYTES = 192 * 1024 * 1024


@dataclass(frozen=True)
class Rung:
    """One scenario, and what it needs."""

    name: str
    run: Callable[[Lab, Path, Progress], Outcome]
    brokers: int = 1
    has_small_disk: bool = False
    durability: str = "log"
    cuts_senders: bool = False
    """True if the rung needs senders with a connection to cut."""


def rungs(kills: int) -> list[Rung]:
    """The ladder. `kills`: of the gateway; the other counts follow from it (50 gives those of the acceptance)."""
    some, few = max(1, round(kills * 0.4)), max(1, round(kills * 0.1))

    def spoil(name: str, make_rule: Callable[[], scenarios.Rule], times: int) -> Rung:
        what = name.replace("-", " ")
        return Rung(name, lambda lab, _, say: scenarios.spoil_produce(lab, make_rule, times, say, what=what))

    def spool(name: str, run: Callable[[Lab, Path, Progress], Outcome], brokers: int = 1) -> Rung:
        return Rung(name, run, brokers, durability="spool")

    return [
        Rung("gateway-killed", lambda lab, _, say: scenarios.kill_gateway(lab, kills, say)),
        Rung("gateway-killed-repeats", lambda lab, _, say: scenarios.kill_gateway(lab, some, say, resends=True)),
        Rung("senders-cut", lambda lab, _, say: scenarios.cut_senders(lab, 4 * kills, say), cuts_senders=True),
        Rung(
            "senders-cut-repeats",
            lambda lab, _, say: scenarios.cut_senders(lab, 4 * kills, say, resends=True),
            cuts_senders=True,
        ),
        Rung("gateway-frozen", lambda lab, _, say: scenarios.freeze_gateway(lab, few, say, seconds=5)),
        Rung("kafka-stopped", lambda lab, _, say: scenarios.stop_kafka(lab, 60 if kills >= 50 else 15, say)),
        Rung("kafka-killed", lambda lab, _, say: scenarios.kill_kafka(lab, some, say)),
        Rung("kafka-frozen", lambda lab, _, say: scenarios.freeze_kafka(lab, 20, say)),
        Rung("network-cut", lambda lab, _, say: scenarios.cut_network(lab, 20, say)),
        spoil("produce-answer-lost", lambda: drop_answer(Api.PRODUCE), 2 * kills),
        spoil("produce-answer-swallowed", lambda: swallow_answer(Api.PRODUCE), few),
        spoil("produce-cut", lambda: cut_request(Api.PRODUCE), 2 * kills),
        Rung("produce-held", lambda lab, _, say: scenarios.hold_produce(lab, few, say, seconds=30)),
        Rung("read-back-blind", lambda lab, _, say: scenarios.blind_read_back(lab, few, say)),
        Rung("read-back-slow", lambda lab, _, say: scenarios.slow_read_back(lab, few, say)),
        Rung("overload", lambda lab, _, say: scenarios.overload(lab, say)),
        Rung("disk-full", lambda lab, disk, say: scenarios.fill_disk(lab, disk, few, say), has_small_disk=True),
        Rung("anything-spoilt", lambda lab, _, say: scenarios.spoil_anything(lab, kills, say)),
        Rung("leader-killed", lambda lab, _, say: scenarios.kill_leader(lab, some, say), brokers=3),
        spool("spool-gateway-killed", lambda lab, _, say: scenarios.kill_gateway(lab, kills, say)),
        spool("spool-both-killed", lambda lab, _, say: scenarios.kill_gateway_without_kafka(lab, some, say)),
        spool("spool-kafka-stopped", lambda lab, _, say: scenarios.stop_kafka(lab, 60 if kills >= 50 else 15, say)),
        spool("spool-kafka-killed", lambda lab, _, say: scenarios.kill_kafka(lab, some, say)),
        spool("spool-kafka-frozen", lambda lab, _, say: scenarios.freeze_kafka(lab, 20, say)),
        spool("spool-network-cut", lambda lab, _, say: scenarios.cut_network(lab, 20, say)),
        spool("spool-produce-held", lambda lab, _, say: scenarios.hold_produce(lab, few, say, seconds=30)),
        spool(
            "spool-commit-lost",
            lambda lab, _, say: scenarios.spoil_produce(
                lab, lambda: drop_answer(Api.END_TXN), kills, say, what="answer to a commit lost"
            ),
        ),
        spool(
            "spool-commit-held",
            lambda lab, _, say: scenarios.spoil_produce(
                lab, lambda: hold_request(Api.END_TXN, 5), few, say, what="commit held 5 s"
            ),
        ),
        spool("spool-ends-hidden", lambda lab, _, say: scenarios.hide_ends(lab, few, say)),
        spool("spool-anything-spoilt", lambda lab, _, say: scenarios.spoil_anything(lab, kills, say)),
        spool("spool-leader-killed", lambda lab, _, say: scenarios.kill_leader(lab, some, say), brokers=3),
    ]


def climb(kind: GatewayKind, rung: Rung, say: Progress) -> Outcome:
    """Run one rung with servers of its own."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-chaos-")))
        disk = stack.enter_context(small_disk(directory)) if rung.has_small_disk else directory
        storage = disk / "log" if rung.has_small_disk else None
        lab = Lab(directory, kind, brokers=rung.brokers, storage=storage, durability=rung.durability)
        stack.callback(lab.close)
        outcome = rung.run(lab, disk, say)
        if outcome.verdict.violations:
            say(f"what led to the violations is kept in {keep_evidence(directory)}")
        return outcome


def keep_evidence(directory: Path) -> Path:
    """Copy the gateway's log and spool, the histories and the brokers' logs to where they outlive the run; return that place."""
    kept = Path(tempfile.mkdtemp(prefix="strandline-violations-"))
    for found in directory.iterdir():
        if found.name == "disk":
            continue  # full by design, and its log is as large as the disk
        if found.is_dir():
            shutil.copytree(found, kept / found.name, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)
        else:
            shutil.copy(found, kept)
    return kept


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A disk of its own, soon full. Raises PermissionError where none may be mounted."""
    disk = directory / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "strandline-disk", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        raise PermissionError(f"a full disk needs the right to mount one: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Break the ingest tier under load, and count what was lost or doubled."
    )
    parser.add_argument("--kills", type=int, default=50, help="kills of each gateway; other counts follow")
    parser.add_argument("--gateway", choices=[kind.name for kind in KINDS], action="append", help="only these")
    parser.add_argument("--rung", action="append", help="only these (see the table for names)")
    parser.add_argument(
        "--at-once", type=int, default=1, help="gateways at a time; most rungs wait more than they work"
    )
    parser.add_argument("--by-turns", action="store_true", help="each rung at one gateway, which take turns")
    options = parser.parse_args()
    # However it is asked to end, it ends its servers first; a shell's background job would else ignore Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    kinds = [kind for kind in KINDS if not options.gateway or kind.name in options.gateway]
    ladder = rungs(options.kills)
    unknown = set(options.rung or []) - {rung.name for rung in ladder}
    if unknown:
        parser.error(f"no such rung: {', '.join(sorted(unknown))}; there are {', '.join(rung.name for rung in ladder)}")
    climbs = _climbs(
        kinds, [rung for rung in ladder if not options.rung or rung.name in options.rung], options.by_turns
    )
    if options.at_once > 1:
        return _climb_at_once(climbs, options)
    console = Console(highlight=False, soft_wrap=True)
    began_s = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began_s:7.1f} s  {text}", markup=False)

    table = Table(
        "gateway", "rung", "rounds", "sent", "acknowledged", "unknown", "lost", "twice", "other", "measured", ""
    )
    is_all_kept = True
    for kind, climbed in climbs:
        for rung in climbed:
            try:
                row, is_kept = _row(climb(kind, rung, say))
            except PermissionError as error:
                say(f"{rung.name} SKIPPED: {error}")
                row, is_kept = ["-"] * 7 + [str(error), "SKIPPED"], True
            except Exception as error:  # noqa: BLE001  # the edge of one rung: the others still have something to say
                say(f"{rung.name} FAILED: {error}\n{traceback.format_exc()}")
                row, is_kept = ["-"] * 7 + [str(error)[:300], "FAILED"], False
            table.add_row(kind.name, rung.name, *row)
            is_all_kept = is_all_kept and is_kept
    Console(width=200, highlight=False).print(table)
    return 0 if is_all_kept else 1


def _climbs(
    kinds: Sequence[GatewayKind], ladder: Sequence[Rung], by_turns: bool
) -> list[tuple[GatewayKind, list[Rung]]]:
    """Return which rungs each gateway climbs.

    `by_turns`: each rung is climbed by one of the gateways that can, and the next rung by the next one.
    """
    climbed: dict[str, list[Rung]] = {kind.name: [] for kind in kinds}
    for number, rung in enumerate(ladder):
        able = [kind.name for kind in kinds if kind.load.can_leave or not rung.cuts_senders]
        for name in [able[number % len(able)]] if able and by_turns else able:
            climbed[name].append(rung)
    return [(kind, climbed[kind.name]) for kind in kinds if climbed[kind.name]]


def _climb_at_once(climbs: Sequence[tuple[GatewayKind, list[Rung]]], options: argparse.Namespace) -> int:
    """Climb each gateway's ladder in its own process, some at a time. Each prints its own table."""
    waiting = list(climbs)
    climbing: list[subprocess.Popen[bytes]] = []
    is_all_kept = True
    try:
        while waiting or climbing:
            while waiting and len(climbing) < options.at_once:
                command = [sys.executable, "-m", "tests.fault.ingest_ladder", "--kills", str(options.kills)]
                kind, climbed = waiting.pop(0)
                command += ["--gateway", kind.name, *(word for rung in climbed for word in ("--rung", rung.name))]
                climbing.append(subprocess.Popen(command))
            for ended in [one for one in climbing if one.poll() is not None]:
                climbing.remove(ended)
                is_all_kept = is_all_kept and ended.returncode == 0
            time.sleep(0.2)  # sleeps: a rung takes as long as it takes
    finally:
        for left in climbing:
            left.terminate()  # it ends its servers first
        for left in climbing:
            left.wait()
    return 0 if is_all_kept else 1


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _row(outcome: Outcome) -> tuple[list[str], bool]:
    verdict = outcome.verdict
    others = len(verdict.violations) - len(verdict.lost) - len(verdict.twice)
    counts = [outcome.rounds, verdict.sent, verdict.acknowledged, verdict.unknown_found + verdict.unknown_missing]
    measured = "\n".join(f"{name} {measure}" for name, measure in outcome.measures.items())
    numbers = [*counts, len(verdict.lost), len(verdict.twice), others]
    return [*map(str, numbers), measured, "FAILED" if outcome.failures else "kept"], not outcome.failures


if __name__ == "__main__":
    sys.exit(main())
