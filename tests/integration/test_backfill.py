"""Recomputes windows of the past while a job runs, against real servers.

A cascade of two stages over records of which one in twenty is late. The version changed twice. What the aliases must
show is computed here from the sent records, the slices in the ledger and the versions, without the platform's code.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.core.errors import Conflict, LogTruncated
from strandline.ledger.states import BackfillState
from strandline.results.generations import Generation, swap_aliases
from strandline.services.jobs.job_status import present_pipeline
from strandline.services.jobs.result_records import result_records
from strandline.services.jobs.result_views import kibana_objects
from tests.support.audit_lab import AuditLab
from tests.support.lens import counted, panels, search
from tests.support.platform import Platform
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.in_order, pytest.mark.long]
NAME = "again"
STREAM = f"{NAME}-in"
BASE_MS = 1_793_491_200_000 - 300_000
"""Five minutes before 2026-11-01 UTC: the results lie in two months' indices."""
STEP_MS = 60
STREAM_TEXT = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, power: long}}
key: device
"""
PIPELINE = """
pipeline: {job}
input: {{stream: {job}-in}}
event_time: {{field: ts, delay: 10s, max_ahead: null, idle_timeout: null}}
steps:
  - where: power < {below}
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), total: sum(power * {times})}}}}
    emit: [{{elasticsearch: {job}-tens}}]
  - window: {{name: minute, tumbling: 1m, aggregate: {{n: sum(n), peak: max(total)}}}}
    emit: [{{elasticsearch: {job}-minute}}]
"""
VERSIONS = {1: (90, 1), 2: (80, 2), 3: (70, 3)}
"""Version -> (power below, times)."""
Shown = dict[tuple[int, str | None], tuple[int, int]]
"""(window end, device) -> n and the other aggregate."""


def text(version: int, job: str = NAME) -> str:
    below, times = VERSIONS[version]
    return PIPELINE.format(job=job, below=below, times=times)


def records(count: int) -> list[tuple[int, str, int]]:
    """Return (event time, device, power), in order with 3 s of disorder. One in twenty is late."""
    chance = random.Random(7)
    found = []
    for number in range(count):
        late_ms = 100_000 if number > 2_500 and chance.random() < 0.05 else 0
        ts = BASE_MS + number * STEP_MS - chance.randrange(3_000) - late_ms
        found.append((ts, f"d{number % 7}", chance.randrange(100)))
    return found


SENT = records(14_000)


def lines(first: int, last: int) -> list[bytes]:
    return [json.dumps({"device": d, "ts": ts, "power": p}).encode() for ts, d, p in SENT[first:last]]


def accepted(lab: AuditLab) -> Iterator[tuple[int, str, int]]:
    """Yield what is not late by the watermark of its own slice. Record k was written to partition k % 2, in order."""
    for row in lab.slices(NAME):
        for partition, end in row.offsets[STREAM].items():
            for offset in range(row.offsets_first[STREAM].get(partition, 0), end):
                record = SENT[2 * offset + partition]
                if row.watermark_ms is None or record[0] >= row.watermark_ms:
                    yield record


def recomputed(lab: AuditLab, version: int) -> dict[str, Shown]:
    """Stage -> every window, as this version says."""
    below, times = VERSIONS[version]
    groups = defaultdict(list)
    for ts, device, power in accepted(lab):
        if power < below:
            groups[(ts // 10_000 + 1) * 10_000, device].append(power * times)
    tens: Shown = {key: (len(powers), sum(powers)) for key, powers in groups.items()}
    parts = defaultdict(list)
    for (end_ms, _), result in tens.items():
        parts[((end_ms - 1) // 60_000 + 1) * 60_000].append(result)
    minute: Shown = {(end, None): (sum(n for n, _ in all_), max(t for _, t in all_)) for end, all_ in parts.items()}
    return {"tens": tens, "minute": minute}


def shown(lab: AuditLab) -> dict[str, tuple[Shown, dict[int, set[int]], set[str]]]:
    """Stage -> what its alias shows: results, window end -> versions, and the generations' indices. No id twice."""
    found = {}
    for stage, value in (("tens", "total"), ("minute", "peak")):
        results: Shown = {}
        versions: dict[int, set[int]] = defaultdict(set)
        lab.index.post(f"/{NAME}-{stage}/_refresh").raise_for_status()
        answer = lab.index.post(f"/{NAME}-{stage}/_search", json={"size": 10_000}).json()
        hits = answer["hits"]["hits"]
        assert answer["hits"]["total"]["value"] == len(hits)
        for hit in hits:
            source = hit["_source"]
            end_ms = int(datetime.fromisoformat(source["@timestamp"]).timestamp() * 1000)
            key = (end_ms, source.get("device"))
            assert key not in results, f"{key} is shown twice"
            results[key] = (source["n"], source[value])
            versions[end_ms].add(source["strandline"]["version"])
            assert hit["_index"].endswith(source["@timestamp"][:7].replace("-", "."))
        found[stage] = (results, versions, {hit["_index"] for hit in hits})
    return found


def version_of(lab: AuditLab, stage: str, end_ms: int, ranges: list[tuple[int, int, int]]) -> int:
    """The version that must be shown: of the last range (version, after, up to) that holds the window, else of the run."""
    for version, after_ms, up_to_ms in reversed(ranges):
        if after_ms < end_ms <= up_to_ms:
            return version
    return next(c.version for c in reversed(lab.ledger.checkpoints(NAME, 10_000)) if c.emitted.get(stage, 0) >= end_ms)


def require_shown(lab: AuditLab, ranges: dict[str, list[tuple[int, int, int]]]) -> None:
    """Each window that is emitted is shown once, as the right version says; and no other."""
    now = shown(lab)
    emitted = lab.ledger.last_checkpoint(NAME).emitted
    results = {version: recomputed(lab, version) for version in VERSIONS}
    for stage in ("tens", "minute"):
        ends = sorted({end for version in VERSIONS for end, _ in results[version][stage] if end <= emitted[stage]})
        expected: Shown = {}
        for end in ends:
            version = version_of(lab, stage, end, ranges[stage])
            of_window = {key: value for key, value in results[version][stage].items() if key[0] == end}
            expected |= of_window
            if of_window:
                assert now[stage][1][end] == {version}
        assert now[stage][0] == expected
        assert len(expected) > 5


def require_dashboard_counts_each_window_once(lab: AuditLab) -> None:
    """Require that the search of the job's dashboard in Kibana finds what the aliases show.

    With a pattern it would count more.
    """
    shown_now = shown(lab)
    pipeline = present_pipeline(lab.ledger, lab.ledger.job(NAME))
    found = list(panels(kibana_objects(pipeline)))
    assert {panel.alias for panel in found} == {f"{NAME}-tens", f"{NAME}-minute"}
    for panel in found:
        results = len(shown_now[panel.alias.removeprefix(f"{NAME}-")][0])
        answer = lab.index.post(f"/{panel.alias}/_search", json=search(panel)).json()
        assert counted(answer) == results, panel.title
        by_pattern = lab.index.post(f"/{panel.alias}*/_search?expand_wildcards=all", json=search(panel)).json()
        assert counted(by_pattern) > results, panel.title


def require_records_of_results(lab: AuditLab) -> None:
    """Require that the records in the ranges of a result give this result, and that they aren't the whole log."""
    at = {
        (partition, offset): SENT[2 * offset + partition]
        for row in lab.slices(NAME)
        for partition, end in row.offsets[STREAM].items()
        for offset in range(row.offsets_first[STREAM].get(partition, 0), end)
        if row.watermark_ms is None or SENT[2 * offset + partition][0] >= row.watermark_ms
    }
    url, told_records = lab.settings.elasticsearch_url, []
    for stage in ("tens", "minute"):
        alias = f"{NAME}-{stage}"
        hits = lab.index.post(f"/{alias}/_search", json={"size": 10_000, "sort": "@timestamp"}).json()["hits"]["hits"]
        for hit in hits[:: 1 if stage == "minute" else 11]:
            source = hit["_source"]
            told = result_records(lab.ledger, url, NAME, alias, hit["_id"])
            below, _ = VERSIONS[told.version]
            found = [
                at.get((one.partition, o)) for one in told.ranges for o in range(one.offset_first, one.offset_next)
            ]
            devices = {source["device"]} if stage == "tens" else {d for _, d, _ in SENT}
            of_result = [
                one
                for one in found
                if one and told.window_start_ms <= one[0] < told.window_end_ms and one[1] in devices and one[2] < below
            ]
            assert len(of_result) == source["n"], (hit, told)
            told_records.append(len(found))
    assert len(told_records) > 30
    assert min(told_records) < len(at) / 4


@pytest.mark.guarantee(
    "G95",
    "The windows of a backfill appear in one step when it is complete, each once with the value of its version, and "
    "all other windows stay unchanged. A backfill that is killed continues, and live results continue in the "
    "meantime.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
@pytest.mark.guarantee(
    "G198",
    "All records of a result are in the offset ranges that are reported for it, for every version, stage, and "
    "backfill, also after sliding windows. If the ledger no longer knows the ranges, the answer says so.",
    promise="failures-are-reported-with-their-remedy",
)
def test_a_backfill_replaces_the_windows_of_its_range_and_no_other(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(STREAM_TEXT + "---" + text(1))
    lab.send(STREAM, lines(0, 6_000))
    with lab.running(NAME, STREAM):
        pass
    lab.apply(text(2))
    with pytest.raises(Conflict, match="version 2 of job again has committed nothing yet"):
        lab.request_backfill(NAME, BASE_MS)
    lab.send(STREAM, lines(6_000, 9_000))
    with lab.running(NAME, STREAM):
        pass
    none = {"tens": [], "minute": []}
    require_shown(lab, none)

    from_ms = BASE_MS + 125_000
    row = lab.request_backfill(NAME, from_ms)
    assert lab.request_backfill(NAME, from_ms) == row
    with pytest.raises(Conflict, match="backfill 2 of job again is requested"):
        lab.request_backfill(NAME, from_ms + 60_000)
    emitted = lab.ledger.last_checkpoint(NAME).emitted
    assert row.windows == {
        "tens": (from_ms // 10_000 * 10_000, emitted["tens"]),
        "minute": (from_ms // 60_000 * 60_000, emitted["minute"]),
    }
    ranges = {stage: [(2, *window)] for stage, window in row.windows.items()}
    killed = lab.backfill_killed_at(row, "backfill.chunk_written")
    assert (killed.state, killed.done_ms, killed.epoch) == (BackfillState.RUNNING, None, 1)
    lab.index.post(f"/{NAME}-tens.g2-2026.10/_refresh").raise_for_status()
    hidden = lab.index.get(f"/{NAME}-tens.g2-2026.10/_count").json()["count"]
    assert hidden > 10, "a chunk was written and not noted"
    require_shown(lab, none)

    lab.send(STREAM, lines(9_000, 12_000))
    with lab.running(NAME, STREAM):  # the live job reads on meanwhile
        done = lab.backfill(row)
    assert (done.state, done.epoch, done.refused) == (BackfillState.COMPLETE, 2, {}), done.message
    assert done.done_ms == max(emitted.values())
    assert 0 < done.records_done <= done.records
    assert lab.ledger.last_checkpoint(NAME).emitted["minute"] > emitted["minute"]
    require_shown(lab, ranges)
    require_dashboard_counts_each_window_once(lab)
    require_records_of_results(lab)
    assert shown(lab)["tens"][2] == {f"{NAME}-tens{g}-2026.{m}" for g in ("", ".g2") for m in (10, 11)}
    results = recomputed(lab, 2)
    for stage, (after_ms, up_to_ms) in row.windows.items():
        assert done.results[stage] == sum(after_ms < end <= up_to_ms for end, _ in results[stage])
    report = lab.audit(NAME)
    assert (report["outcome"], report["sample"]) == ("clean", []), report


def test_another_backfill_over_a_part_of_it_replaces_that_part_alone(audit_lab: AuditLab) -> None:
    """The backfill also replaces some windows that only the live job wrote. It is killed after the swap."""
    lab, row = audit_lab, audit_lab.ledger.backfill(NAME, 2)
    ranges = {stage: [(2, *window)] for stage, window in row.windows.items()}
    lab.apply(text(3))
    lab.send(STREAM, lines(12_000, 14_000))
    with lab.running(NAME, STREAM):
        pass
    part = (BASE_MS + 240_000, row.windows["tens"].up_to_ms + 65_000)
    row = lab.request_backfill(NAME, *part)
    assert row.generation == 3
    for stage, window in row.windows.items():
        ranges[stage].append((3, *window))
    killed = lab.backfill_killed_at(row, "backfill.swapped")
    assert killed.state is BackfillState.SWAPPING
    with pytest.raises(Conflict, match="changing the aliases now"):
        lab.audit(NAME)
    with pytest.raises(Conflict, match="is swapping and can't become cancelled"):
        lab.ledger.move_backfill(NAME, 3, BackfillState.CANCELLED)
    assert lab.backfill(row).state is BackfillState.COMPLETE
    require_shown(lab, ranges)
    report = lab.audit(NAME)
    assert (report["outcome"], report["sample"]) == ("clean", []), report

    # A swap that was held up since then: Elasticsearch refuses it whole.
    url, store = lab.settings.elasticsearch_url, f"{NAME}-tens"
    with pytest.raises(Conflict, match="shows generation 3 already"):
        swap_aliases(url, {store: [Generation(2, *ranges["tens"][0][1:])]})
    first = f"{store}-2026.10"
    stale = [{"remove": {"index": first, "alias": f"{store}.shown.g2", "must_exist": True}}]
    stale += [{"add": {"index": first, "alias": store}}]
    assert lab.index.post("/_aliases", json={"actions": stale}).status_code == 404
    require_shown(lab, ranges)
    middle = lab.audit(NAME, part[0] - 30_000, part[0] + 60_000)
    assert middle["outcome"] == "clean", middle

    # The audit still has teeth: in the generation that is shown, and in what the filter hides no more.
    documents = lab.documents(f"{NAME}-tens")
    gone = min(identity for identity, one in documents.items() if one["strandline"]["version"] == 3)
    month = documents[gone]["@timestamp"][:7].replace("-", ".")
    assert lab.index.delete(f"/{NAME}-tens.g3-{month}/_doc/{gone}").status_code == 200
    (one,) = lab.audit(NAME)["sample"]
    assert (one["kind"], one["id"]) == ("missing", gone)
    assert one["detail"] == f"belongs in {NAME}-tens.g3-{month}"


@pytest.mark.guarantee(
    "G96",
    "A backfill never starts over a hole in the log: it names the time from which it could begin.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_where_the_log_lost_its_beginning_it_says_from_when_it_could_begin(audit_lab: AuditLab) -> None:
    """The slices that were lost hold records of windows up to some time; from there on a backfill is possible."""
    lab = audit_lab
    ends = next(row.offsets[STREAM] for row in lab.slices(NAME) if sum(row.offsets[STREAM].values()) >= 6_000)
    admin = AdminClient({"bootstrap.servers": lab.settings.kafka_bootstrap})
    places = [TopicPartition(STREAM, partition, offset - 1) for partition, offset in ends.items()]
    for future in admin.delete_records(places).values():
        future.result(stretched(30))
    with pytest.raises(LogTruncated, match="the log no longer contains all records") as lost:
        lab.request_backfill(NAME, BASE_MS)
    possible_ms = int(datetime.fromisoformat(str(lost.value).rpartition("--from ")[2]).timestamp() * 1000)
    row = lab.request_backfill(NAME, possible_ms)
    assert row.windows["minute"].after_ms == possible_ms
    lab.ledger.move_backfill(NAME, row.generation, BackfillState.CANCELLED)


def test_a_result_that_the_index_refuses_is_counted_and_has_one_dead_letter(audit_lab: AuditLab) -> None:
    """The sums of one device are infinite, which no document can hold. The first attempt is killed after its chunk."""
    lab, job = audit_lab, "again-refused"
    schema = "{device: string, ts: {type: timestamp, unit: ms}, weight: double}"
    lab.apply(f"""
stream: {job}-in
partitions: 2
schema: {schema}
---
pipeline: {job}
input: {{stream: {job}-in}}
event_time: {{field: ts, delay: 1s, max_ahead: null, idle_timeout: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{total: sum(weight)}}}}
    emit: [{{elasticsearch: {job}-tens}}]
""")
    rows = [{"device": f"d{n % 3}", "ts": BASE_MS + n * 200, "weight": 1e308 if n % 3 == 0 else n} for n in range(400)]
    lab.send(f"{job}-in", [json.dumps(row).encode() for row in rows])
    lab.drain(job)
    row = lab.request_backfill(job, BASE_MS, BASE_MS + 80_000)
    lab.backfill_killed_at(row, "backfill.chunk_written")
    done = lab.backfill(row)
    windows = 8
    assert (done.results, done.refused) == ({"tens": 3 * windows}, {"tens": windows})
    (why,) = done.sample
    assert "non_finite_number: total is inf" in why
    report = lab.audit(job)
    assert (report["outcome"], report["sample"]) == ("clean", []), report
    (counts,) = [one["counts"] for one in report["stores"] if one["stage"]]
    assert (counts["same"], counts["refused"]) == (2 * windows, windows)
    letters = read_messages(lab.settings.kafka_bootstrap, f"{job}.dead-letter", 1, isolation="read_committed")
    places = [dict(letter.headers())["index"].decode().rpartition("-")[0] for letter in letters]
    assert sorted(places) == [f"{job}-tens"] * windows + [f"{job}-tens.g2"] * windows


def test_a_backfill_whose_process_is_killed_is_gone_on_with(platform: Platform) -> None:
    """From the command's side: asked for over the REST API, its process killed, complete, and seen through the alias."""
    job = "again-killed"
    platform.apply(STREAM_TEXT.replace(STREAM, f"{job}-in") + "---" + text(1, job))
    assert platform.send(f"{job}-in", lines(0, 2_400)) == 2_400
    platform.wait_until_read(job)
    emitted = platform.wait_for(job, lambda state: bool(state["last_emission"].get("minute")), "emitting")[
        "last_emission"
    ]
    asked = platform.control.start_backfill(job, BASE_MS, emitted["minute"])
    wait_until(lambda: platform.control.backfill(job, 2)["state"], lambda state: state == "running", "running", 60)
    os.kill(json.loads((platform.stack.data_dir / "pids.json").read_text())[f"backfill-{job}"], signal.SIGKILL)
    done = platform.control.wait_for_backfill(job, asked["generation"], lambda _: None)
    assert (done["state"], done["attempts"]) == ("complete", 2)
    assert set(done["windows"]) == set(done["results"]) == {"tens", "minute"}
    for stage, window in done["windows"].items():
        bounds = {"gt": window["after_ms"], "lte": window["up_to_ms"], "format": "epoch_millis"}
        query = {"size": 5_000, "query": {"range": {"@timestamp": bounds}}}
        hits = platform.index.post(f"/{job}-{stage}/_search", json=query).json()["hits"]["hits"]
        assert len(hits) == done["results"][stage]
        assert {hit["_index"].rpartition("-")[0] for hit in hits} == {f"{job}-{stage}.g2"}
    platform.stop(job)
