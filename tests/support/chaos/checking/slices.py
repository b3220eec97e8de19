"""The chain of slices and checkpoints: one after the other over the log, by runs whose epochs only rise."""

from __future__ import annotations

from tests.support.chaos.checking.pace import Windows
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Dump, Row


def check_slices(
    dump: Dump,
    slices: list[Row],
    checkpoints: dict[int, Row],
    stream: str,
    windows: dict[str, Windows],
    verdict: JobVerdict,
) -> None:
    verdict.slices, verdict.epochs = len(slices), len(dump.tables["runs"])
    say = verdict.ledger.append
    if [row["epoch"] for row in dump.tables["runs"]] != list(range(1, verdict.epochs + 1)):
        say(f"runs have the epochs {[row['epoch'] for row in dump.tables['runs']]}")
    started_ms = {row["epoch"]: row["started_ms"] for row in dump.tables["runs"]}
    before: Row = {"number": 0, "epoch": 0, "offsets": {stream: dump.read_from}, "watermark_ms": None}
    committed_by = 0
    for row in slices:
        name = f"slice {row['number']}"
        if row["number"] != before["number"] + 1:
            say(f"{name} follows {before['number']}")
        starts, ends = row["offsets_first"][stream], row["offsets"][stream]
        known = before["offsets"][stream]
        if any(starts.get(partition, 0) != offset for partition, offset in known.items()):
            say(f"{name} begins at {starts}, the one before ends at {known}")
        if any(starts.get(partition, 0) for partition in ends.keys() - known.keys()):
            say(f"{name} begins at {starts}: a partition that is new is not read from its first record")
        if known.keys() - ends.keys():
            say(f"{name} has lost the partitions {sorted(known.keys() - ends.keys())}")
        if any(ends.get(partition, 0) < offset for partition, offset in starts.items()):
            say(f"{name} ends at {ends}, before it begins at {starts}")
        if before["watermark_ms"] is not None and (row["watermark_ms"] or 0) < before["watermark_ms"]:
            say(f"{name} has watermark_ms {row['watermark_ms']}, the one before {before['watermark_ms']}")
        if row["epoch"] not in started_ms:
            say(f"{name} was planned by epoch {row['epoch']}, which no run has")
        if row["epoch"] < committed_by:
            say(f"{name} was planned by epoch {row['epoch']}, after epoch {committed_by} had committed")
        done = checkpoints.get(row["number"])
        if (done is not None) != (row["status"] == "committed"):
            say(f"{name} is {row['status']}, and its checkpoint is {'there' if done else 'not there'}")
        if done is not None:
            if done["epoch"] < max(committed_by, row["epoch"]):
                say(
                    f"{name} was committed by epoch {done['epoch']} after epoch {max(committed_by, row['epoch'])} had begun"
                )
            if done["epoch"] not in started_ms:
                say(f"{name} was committed by epoch {done['epoch']}, which no run has")
            later = started_ms.get(done["epoch"] + 1)
            if later is not None and done["committed_ms"] > later and not dump.ledger_times_jump:
                say(f"{name} was committed by epoch {done['epoch']} when epoch {done['epoch'] + 1} had started")
            for stage, shape in windows.items():
                closed = None if done["closes_ms"] is None else shape.last_end(done["closes_ms"])
                if done["emitted"].get(stage) != closed:
                    say(f"{name} says that {stage} emitted up to {done['emitted'].get(stage)}; it closes {closed}")
            committed_by = done["epoch"]
        elif row is not slices[-1]:
            say(f"{name} was never committed, and others follow it")
        before = row
    _check_versions(dump, slices, checkpoints, verdict)
    for number in checkpoints.keys() - {row["number"] for row in slices}:
        say(f"a checkpoint says that slice {number} is committed, and there is no such slice")
    if len(checkpoints) != len(dump.tables["checkpoints"]):
        say("a slice has two checkpoints")


def _check_versions(dump: Dump, slices: list[Row], checkpoints: dict[int, Row], verdict: JobVerdict) -> None:
    """A slice is of one version, that of the runs that planned and committed it; versions only rise, and the newest takes over in
    the end."""
    say = verdict.ledger.append
    newest = len(dump.tables["job_versions"])
    if [row["version"] for row in dump.tables["job_versions"]] != list(range(1, newest + 1)):
        say(f"the job has the versions {[row['version'] for row in dump.tables['job_versions']]}")
    of_run = {row["epoch"]: row["version"] for row in dump.tables["runs"]}
    reached = 0
    for row in slices:
        done = checkpoints.get(row["number"], row)
        versions = [row["version"], done["version"], of_run.get(row["epoch"]), of_run.get(done["epoch"])]
        if versions != [row["version"]] * 4:
            say(f"slice {row['number']} is of version {versions[0]}, its checkpoint and its runs of {versions[1:]}")
        if not reached <= row["version"] <= newest:
            say(
                f"slice {row['number']} is of version {row['version']}, after version {reached}; the newest is {newest}"
            )
        reached = max(reached, row["version"])
        if row["kind"] == "drain" and row["version"] != newest:
            say(f"version {newest} never took over, the job was drained by version {row['version']}")


def check_log(dump: Dump, slices: list[Row], stream: str, verdict: JobVerdict) -> None:
    """The log holds all that the slices hold: nothing was cut off behind them, and nothing has taken its place."""
    for partition, end in slices[-1]["offsets"][stream].items() if slices else ():
        if dump.log_ends and end > dump.log_ends.get(partition, 0):
            held = dump.log_ends.get(partition, 0)
            verdict.lost.append(f"the slices end at {end} in partition {partition}, and the log at {held}")
    for partition, start in dump.log_starts.items():
        if start > dump.read_from.get(partition, 0):
            verdict.lost.append(f"the log begins at {start} in partition {partition}")
