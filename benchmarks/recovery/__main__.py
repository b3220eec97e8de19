"""`python -m benchmarks.recovery`: seconds without results after a kill of a job under load, compared with plain Spark, and the
cost of `exactly_once` compared with `none`.

Starts its own servers in a temporary directory, prints tables, and writes the `recovery` part of benchmarks/RESULTS.md. With
`--quick`, one kill of each kind. It writes only to the file of `--output`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import httpx
from rich.console import Console

from benchmarks.peers.spark_connector import connector_jars
from benchmarks.recovery import guarantees
from benchmarks.recovery.feed import Feed
from benchmarks.recovery.results_index import FRESH_MS
from benchmarks.recovery.sides import Kill, PlainSide, Recoveries, StrandlineSide
from benchmarks.recovery.work import DEVICES, PRELOAD_DEVICES, PRELOAD_MS, RATE, Verdict, stream_text
from benchmarks.report import RESULTS, Row, machine_text, markdown, put_part, show, written_by
from benchmarks.servers import new_stack
from strandline.core.documents import read_documents
from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.topics import Topics

PARTS = ["minute", "plain", "pair", "hour"]
PLAIN = "plain Spark with its checkpoint"
_FAILURES = (RuntimeError, StrandlineError, httpx.HTTPError, OSError, subprocess.SubprocessError)
GOALS_S = {
    "reach 1 min, rewind, standby": 5.0,
    "reach 1 min, snapshot, standby": 5.0,
    "reach 1 h, rewind, standby": 15.0,
}
"""Maximum median seconds until the first new result."""
GOAL_SHARE = 0.95
PAIRS = 8
"""Number of pairs. Passes of the same guarantee differ by a third on a machine of two cores that also runs the servers."""
MINUTE_S = 65.0
"""Seconds that the job runs before its first kill, so that a rewind has a minute to read."""


@dataclass
class Measured:
    """All measurements of a run of this benchmark."""

    preload: int
    pair_records: int
    recoveries: list[Recoveries] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    pair: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


class Run:
    """One run, with one Kafka and one Elasticsearch."""

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        kills: int,
        fill_s: float,
        measured: Measured,
        save: Callable[[], None],
        console: Console,
    ) -> None:
        """Args: save: Called after each measurement, because the next one takes minutes."""
        self._settings, self._directory, self._kills, self._fill_s = settings, directory, kills, fill_s
        self._measured, self._save, self._console = measured, save, console
        self._topics = Topics(settings.kafka_bootstrap, replication=1, record_bytes_max=1_000_000)

    def minute(self) -> None:
        """Measure with a reach of 1 min: without and with a standby, by rewind and from a snapshot."""
        feed = self._feed("minute", 0)
        try:
            side = self._strandline("minute", "1m", feed)
            side.start_service(1)
            began_s = time.monotonic()
            side.apply("rewind")
            time.sleep(max(0.0, began_s + self._fill_s - time.monotonic()))  # duration of the load
            self._repeat("reach 1 min, rewind, standby", lambda: side.kill("rewind"))
            side.apply("snapshot")
            self._repeat("reach 1 min, snapshot, standby", lambda: side.kill("snapshot"))
            side.start_service(0)
            self._repeat("reach 1 min, snapshot, no standby", lambda: side.kill("snapshot"))
            side.apply("rewind")
            self._repeat("reach 1 min, rewind, no standby", lambda: side.kill("rewind"))
            self._judge("Strandline, reach 1 min", side.end())
        finally:
            feed.kill()
            side.stop_service()

    def hour(self) -> None:
        """Measure with a reach of 1 h, over preloaded records: by rewind and from a snapshot, with a standby."""
        feed = self._feed("hour", self._measured.preload)
        try:
            side = self._strandline("hour", "1h", feed)
            side.start_service(1)
            side.apply("rewind")
            self._repeat("reach 1 h, rewind, standby", lambda: side.kill("rewind"))
            side.apply("snapshot")
            self._repeat("reach 1 h, snapshot, standby", lambda: side.kill("snapshot"))
            self._judge("Strandline, reach 1 h", side.end())
        finally:
            feed.kill()
            side.stop_service()

    def plain(self) -> None:
        feed = self._feed("plain", 0)
        directory = self._directory / "plain"
        directory.mkdir()
        side = PlainSide(self._settings, connector_jars(self._settings.cache_dir), "plain", feed, directory)
        try:
            side.start()
            side.wait_until_fresh()
            self._repeat(PLAIN, side.kill)
            self._judge(PLAIN, side.end())
        finally:
            feed.kill()
            side.end_process()

    def pair(self, repetitions: int) -> None:
        directory = self._directory / "pair"
        directory.mkdir()
        found = guarantees.measure(self._settings, directory, self._measured.pair_records, repetitions)
        self._measured.pair = found
        self._save()
        for guarantee, passes in found.items():
            self._console.print(f"{guarantee}: {', '.join(f'{rate:,.0f} records/s' for rate, _ in passes)}")

    def _strandline(self, name: str, reach: str, feed: Feed) -> StrandlineSide:
        directory = self._directory / name
        directory.mkdir()
        settings = self._settings.model_copy(
            update={"data_dir": directory, "ledger_url": f"sqlite:///{directory / 'ledger.sqlite'}"}
        )
        Ledger.migrate(settings.ledger_url)
        return StrandlineSide(settings, name, reach, feed)

    def _feed(self, name: str, preload: int) -> Feed:
        self._topics.ensure_stream_topic(StreamSpec.parse(read_documents(stream_text(name), "recovery.yaml")[0]))
        return Feed(self._settings.kafka_bootstrap, name, preload, self._directory)

    def _repeat(self, name: str, kill: Callable[[], Kill]) -> None:
        recoveries = Recoveries(name)
        self._measured.recoveries.append(recoveries)
        for number in range(self._kills):
            one = kill()
            recoveries.kills.append(one)
            again = "" if one.records is None else f", {one.records:,} records read again"
            self._console.print(
                f"{name}, kill {number + 1}: first result after {one.first_result_s:.1f} s, up to date after "
                f"{one.fresh_s:.1f} s{again}",
                highlight=False,
            )
        self._save()

    def _judge(self, name: str, verdict: Verdict) -> None:
        self._measured.verdicts[name] = verdict
        self._save()
        self._console.print(f"{name}: {verdict}")
        if name != PLAIN and (verdict.repeated or verdict.lost or verdict.wrong):
            raise RuntimeError(f"results of {name} are wrong: {verdict}")


def recovery_rows(measured: Measured) -> list[Row]:
    """Return a header and a row for each kind of kill."""
    rows: list[Row] = [
        (
            "killed",
            "kills",
            "first new result s, median",
            "worst",
            "up to date s, median",
            "worst",
            "records read again",
        )
    ]
    for one in measured.recoveries:
        first, fresh = [k.first_result_s for k in one.kills], [k.fresh_s for k in one.kills]
        again = [k.records for k in one.kills if k.records is not None]
        rows.append(
            (
                one.name,
                str(len(one.kills)),
                f"{statistics.median(first):.1f}",
                f"{max(first):.1f}",
                f"{statistics.median(fresh):.1f}",
                f"{max(fresh):.1f}",
                f"{min(again):,} to {max(again):,}" if again else "unknown",
            )
        )
    return rows


def verdict_rows(measured: Measured) -> list[Row]:
    rows: list[Row] = [("side", "kills", "results", "repeated", "lost", "wrong")]
    for name, verdict in measured.verdicts.items():
        reach = name.partition(", ")[2]
        kills = sum(len(one.kills) for one in measured.recoveries if one.name == name or (reach and reach in one.name))
        counts = (verdict.results, verdict.repeated, verdict.lost, verdict.wrong)
        rows.append((name, str(kills), *(f"{count:,}" for count in counts)))
    return rows


def pair_rows(measured: Measured) -> list[Row]:
    rows: list[Row] = [("guarantee", "records/s, median", "(least to most)", "CPU-s per M records, median")]
    for guarantee, passes in measured.pair.items():
        rates = [rate for rate, _ in passes]
        cost = statistics.median(cpu_s for _, cpu_s in passes)
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        rows.append((guarantee, f"{statistics.median(rates):,.0f}", spread, f"{cost:.1f}"))
    return rows


def pair_shares(pair: dict[str, list[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """Return the shares of `exactly_once` in the throughput of `none`, and in its CPU time, for each pair of consecutive
    passes. Slow minutes of a machine affect both passes of a pair."""
    both = list(zip(*(pair[guarantee] for guarantee in guarantees.GUARANTEES), strict=True))
    return [once[0] / none[0] for none, once in both], [once[1] / none[1] for none, once in both]


def goal_summaries(measured: Measured) -> str:
    """Return sentences about the goals."""
    summaries = []
    for one in measured.recoveries:
        if one.name in GOALS_S:
            median_s, goal_s = statistics.median(kill.first_result_s for kill in one.kills), GOALS_S[one.name]
            verdict = "reached" if median_s <= goal_s else "missed"
            summaries.append(
                f"Case {one.name}: the first new result comes after {median_s:.1f} s; the goal of {goal_s:g} s is {verdict}."
            )
    if measured.pair:
        rates, costs = pair_shares(measured.pair)
        verdict = "reached" if statistics.median(rates) >= GOAL_SHARE else "missed"
        summaries.append(
            f"`exactly_once` has {statistics.median(rates):.0%} of the throughput of `none` (median of {len(rates)} pairs, "
            f"{min(rates):.0%} to {max(rates):.0%}). It has {statistics.median(costs):.0%} of its CPU time "
            f"({min(costs):.0%} to {max(costs):.0%}). The goal of at least {GOAL_SHARE:.0%} of the throughput is {verdict}."
        )
    return "\n".join(summaries)


def results_text(command: str, measured: Measured) -> str:
    """Return the recovery part of RESULTS.md, as far as it was measured."""
    return f"""\
## Recovery

{written_by(command)}

{machine_text()}

### From the kill to results

{RATE:,} records/s are written to Kafka directly, by a program with a constant pace. {DEVICES:,} devices, event time at the
pace of the clock; 1 s windows per device, then windows of 1 min or 1 h of those, both in Elasticsearch. Kafka, Elasticsearch,
control service, runner, standby, and load share this machine. When a search finds the results of a new window, the runner
is killed with all its processes (`kill -9`). Seconds count from then until a search finds the first result of a new window,
with a refresh every 0.1 s. Results are *up to date* when they are again at most {FRESH_MS / 1_000:g} s of event time behind
the newest record.

*Records read again* is the number in the job's status.{hour_text(measured)}{plain_text(measured)}

{markdown(recovery_rows(measured))}

### Repeated and lost results

All results at the end of the run were compared with the sent records, up to the last window. Strandline creates documents
with ids that are derived from the window. Plain Spark appends in `foreachBatch`, with ids from Elasticsearch.

{markdown(verdict_rows(measured))}
{pair_text(measured) if measured.pair else ""}
{goal_summaries(measured)}
"""


def hour_text(measured: Measured) -> str:
    """Return the text about a reach of an hour, if it was measured."""
    if not any("reach 1 h" in one.name for one in measured.recoveries):
        return ""
    minutes = PRELOAD_MS / 60_000
    return f"""

The reach of 1 h is simulated: {measured.preload:,} records of {PRELOAD_DEVICES} devices are in the log before the live feed
begins. They are {minutes:.0f} min of event time, all in one open window of an hour."""


def plain_text(measured: Measured) -> str:
    """Return the text about plain Spark, if it was measured."""
    if not any(one.name == PLAIN for one in measured.recoveries):
        return ""
    return """

Plain Spark computes only the 1 s windows, and a loop restarts it immediately. Its cold start is included, as in the figures
without a standby."""


def pair_text(measured: Measured) -> str:
    """Return the section about guarantees."""
    passes = len(measured.pair["none"])
    return f"""
### Throughput by guarantee

Work W1, {measured.pair_records:,} records, from the log's start until it is drained. Results in Elasticsearch, slices of at
most {guarantees.ROWS_MAX:,} records. {passes} passes of each guarantee, alternately, in one warm Spark session. CPU time is
of the runner's process tree.

{markdown(pair_rows(measured))}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one kill of each kind, to check that everything works with correct results",
    )
    parser.add_argument("--kills", type=int, help="number of kills of each kind (default 2)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--output", type=Path, help=f"file for the tables (default {RESULTS.name}; none with --quick)")
    options = parser.parse_args()
    kills = options.kills or (1 if options.quick else 2)
    measured = Measured(
        preload=200_000 if options.quick else 4_500_000, pair_records=100_000 if options.quick else 2_000_000
    )
    console = Console(soft_wrap=True)
    failures: list[str] = []
    output = options.output or (None if options.quick else RESULTS)
    command = "make bench-recovery"
    if options.quick or options.kills or options.parts != PARTS:
        quick = " --quick" if options.quick else ""
        command = f"python -m benchmarks.recovery{quick} --kills {kills} --parts {' '.join(options.parts)}"
    signal.signal(signal.SIGTERM, _interrupt)  # in any case, stop the servers first

    def save() -> None:
        if output is not None:
            put_part(output, "recovery", results_text(command, measured))

    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as name:
        directory = Path(name)
        stack = new_stack(directory / "stack", console)
        try:
            stack.start_kafka()
            stack.start_elasticsearch()
            fill_s = 10.0 if options.quick else MINUTE_S
            run = Run(stack.settings, directory, kills, fill_s, measured, save, console)
            parts: dict[str, Callable[[], None]] = {
                "minute": run.minute,
                "hour": run.hour,
                "plain": run.plain,
                "pair": lambda: run.pair(1 if options.quick else PAIRS),
            }
            for part in options.parts:
                try:
                    parts[part]()
                except _FAILURES as error:  # the other parts are measured anyway
                    failures.append(f"{part}: {error}")
                    console.print(failures[-1], markup=False)
        finally:
            stack.stop()
    show(recovery_rows(measured), "From the kill to results", console)
    show(verdict_rows(measured), "Repeated and lost results", console)
    show(pair_rows(measured), "Throughput by guarantee", console)
    console.print(goal_summaries(measured))
    return 1 if failures else 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
