"""Real sensor data through the whole platform, against a recomputation that knows nothing of it but the pipeline's text.

The recomputation below reads the CSV files with the standard library; it shares no code with the platform.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import pytest

from strandline.processing.desk.desk import Desk
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.records import DeskRecords, Partitioner
from strandline.services.cli.result_verbs import page
from tests.support.browser import CHROMIUM, COLORS, look_at

EXAMPLE = Path(__file__).parents[2] / "examples" / "nab.yaml"
DISORDER_S = 12 * 3600
BATCH_S = 6 * 3600


def data_dir() -> Path:
    """Return the directory of the Numenta Anomaly Benchmark's series: $STRANDLINE_TEST_DATA, or shared/data near the
    checkout."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    return Path(os.environ.get("STRANDLINE_TEST_DATA", beside)) / "nab"


Times = tuple[datetime, datetime]
ALL: Times = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
WINTER: Times = (datetime(2013, 12, 1, tzinfo=UTC), datetime(2014, 3, 1, tzinfo=UTC))
"""Half of all readings, and a fifth of the time over which they are."""


def readings(times: Times) -> list[tuple[datetime, str, str]]:
    """(time, device, value as written) from the first of the times to before the second, interleaved by time over all files."""
    rows = []
    for path in sorted(data_dir().glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                time = datetime.strptime(row["timestamp"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
                if times[0] <= time < times[1]:
                    rows.append((time, path.stem, row["value"]))
    return sorted(rows)


def line(time: datetime, device: str, value: str) -> bytes:
    return f'{{"device": "{device}", "timestamp": "{time:%Y-%m-%d %H:%M:%S}", "value": {value}}}'.encode()


def expected_results(times: Times) -> tuple[dict, dict]:
    """Per (device, window end): the hourly and the daily results."""
    hours = defaultdict(list)
    for time, device, value in readings(times):
        hours[device, time.replace(minute=0, second=0) + timedelta(hours=1)].append(float(value))
    hourly, days = {}, defaultdict(list)
    for (device, end), values in hours.items():
        total = math.fsum(values)
        hourly[device, end] = {
            "n": len(values), "mean": total / len(values), "low": min(values), "high": max(values), "total": total,
        }  # fmt: skip
        day = (end - timedelta(hours=1)).replace(hour=0) + timedelta(days=1)
        days[device, day].append(hourly[device, end])
    daily = {}
    for key, parts in days.items():
        n = sum(part["n"] for part in parts)
        daily[key] = {
            "n": n,
            "mean": math.fsum(part["total"] for part in parts) / n,
            "low": min(part["low"] for part in parts),
            "high": max(part["high"] for part in parts),
        }
    return hourly, daily


def compare(documents: dict, expected: dict, size: timedelta, stage: str) -> list[str]:
    """Return what is missing, extra or different, as sentences. Empty if the index is right."""
    findings = []
    found = {}
    for identity, document in documents.items():
        end = datetime.fromisoformat(document["@timestamp"])
        key = (document["device"], end)
        if key in found:
            findings.append(f"{key} exists twice, as {identity}")
        found[key] = document
        if (
            datetime.fromisoformat(document["window"]["start"]) != end - size
            or document["strandline"]["stage"] != stage
        ):
            findings.append(f"{key} has a wrong window or stage: {document}")
    findings += [f"missing {key}" for key in expected.keys() - found.keys()]
    findings += [f"extra {key}" for key in found.keys() - expected.keys()]
    for key in expected.keys() & found.keys():
        for field, value in expected[key].items():
            got = found[key].get(field)
            same = got == value if isinstance(value, int) else math.isclose(got, value, rel_tol=1e-9, abs_tol=1e-12)
            if not same:
                findings.append(f"{key}: {field} is {got}, expected {value}")
    return findings


def pipeline_text(name: str) -> str:
    """The example under other names, so that runs don't meet."""
    text = EXAMPLE.read_text()
    for old, new in (
        ("stream: machines\n", f"stream: {name}-machines\n"),
        ("pipeline: nab\n", f"pipeline: {name}\n"),
        ("{stream: machines}", f"{{stream: {name}-machines}}"),
        ("machines-hourly", f"{name}-hourly"),
        ("machines-daily", f"{name}-daily"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def batches(keyed_lines: list[tuple[float, bytes]]) -> list[list[bytes]]:
    """Requests that each span at most BATCH_S, so that a slice cut through a request makes no record late."""
    return [[text for _, text in group] for _, group in groupby(keyed_lines, key=lambda item: item[0] // BATCH_S)]


def assert_index_is_right(platform, name: str, times: Times) -> None:
    hourly, daily = expected_results(times)
    assert compare(platform.documents(f"{name}-hourly"), hourly, timedelta(hours=1), "hourly") == []
    assert compare(platform.documents(f"{name}-daily"), daily, timedelta(days=1), "daily") == []


def require_desk_agrees(platform, name: str, lines: list[bytes]) -> None:
    """At the desk the same records give the same documents under the same ids, to the last bit of every number."""
    pipeline = read_pipeline(pipeline_text(name).encode(), "nab.yaml")
    desk = Desk(pipeline, 10_000)
    records = DeskRecords(
        lines, Partitioner(pipeline.inputs[0].stream, pipeline.inputs[0].stream.partitions).of_each(lines)
    )
    found: dict[str, dict[str, dict]] = defaultdict(dict)
    for one in [*desk.feed(records), *desk.drain()]:
        found[one.stage][one.document.id] = without_run(json.loads(one.document.source))
    for stage in ("hourly", "daily"):
        stored = {key: without_run(one) for key, one in platform.documents(f"{name}-{stage}").items()}
        assert len(stored) > 100
        assert found[stage] == stored


def without_run(document: dict) -> dict:
    """The document without what tells of the run that wrote it."""
    return document | {"strandline": {key: document["strandline"][key] for key in ("job", "stage", "version")}}


def require_preview(platform, name: str) -> None:
    """The newest records of each partition, from Kafka, with their offsets."""
    held = platform.control.stream(f"{name}-machines")
    counts = [one["offset_next"] - one["offset_first"] for one in held["partitions"]]
    share = 1_000 // sum(count > 0 for count in counts)
    answer = platform.control.get(f"/v1/jobs/{name}/preview", records=1_000)
    assert answer["records"] == sum(min(share, count) for count in counts) and answer["is_cut"]
    # All came within minutes, and tell of years: by its log time none is too far ahead.
    assert answer["accepted"] + sum(answer["rejected"].values()) == answer["records"]
    assert answer["results"] and set(answer["rejected"]) <= {"late"}


def require_picture(platform, name: str, directory: Path) -> None:
    """The hourly means are drawn as the recomputation says. $STRANDLINE_PICTURES: where the picture is kept, for docs/."""
    from_ms, to_ms = (int(time.timestamp() * 1000) for time in WINTER)
    query = {"value": "mean", "from_ms": from_ms, "to_ms": to_ms, "points": 500}
    answer = platform.control.get(f"/v1/results/{name}-hourly", **query)
    assert {series["key"] for series in answer["series"]} == {
        "ambient_temperature_system_failure", "machine_temperature_system_failure",
    }  # fmt: skip
    hourly, _ = expected_results(WINTER)
    for series in answer["series"]:
        parts = defaultdict(list)
        for (device, end), result in hourly.items():
            start_ms = int((end - timedelta(hours=1)).timestamp() * 1000)
            if device == series["key"] and from_ms <= start_ms <= to_ms:
                step = (start_ms - answer["from_ms"]) // answer["step_ms"]
                parts[answer["from_ms"] + step * answer["step_ms"]].append(result["mean"])
        assert dict(series["points"]) == pytest.approx({at: math.fsum(m) / len(m) for at, m in parts.items()})
    if CHROMIUM is not None:
        kept = Path(os.environ.get("STRANDLINE_PICTURES", directory)) / "hourly-means.png"
        _, pixels = look_at(page(answer), directory, kept)
        assert all(pixels[color] > 100 for color in COLORS)


@pytest.fixture(scope="module", autouse=True)
def _data_is_there():
    if not list(data_dir().glob("*.csv")):
        pytest.skip(f"no series of the Numenta Anomaly Benchmark in {data_dir()}; set STRANDLINE_TEST_DATA (README)")


@pytest.mark.guarantee("G5")
@pytest.mark.guarantee(
    "G61",
    "The audit of a running job in its second version, with late and broken records, is clean. Its account closes, by "
    "the log and by the ledger: records = accepted + rejected by reason.",
    promise="the-audit-finds-every-difference",
)
@pytest.mark.guarantee(
    "G361",
    "A local run (`pipeline run`, `pipeline test`) gives the same documents under the same ids as a job over the same "
    "records, except for version, epoch, and emission.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.timeout(900)
def test_in_order_every_document_is_right(platform, tmp_path):
    """A winter, its series interleaved by time: 0 missing, 0 extra, 0 different, nothing refused."""
    platform.apply(pipeline_text("nabo"))
    lines = [(time.timestamp(), line(time, device, value)) for time, device, value in readings(WINTER)]
    accepted = sum(platform.send("nabo-machines", batch) for batch in batches(lines))
    assert accepted == len(lines)
    state = platform.stop("nabo", drain=True)
    assert_index_is_right(platform, "nabo", WINTER)
    require_desk_agrees(platform, "nabo", [text for _, text in lines])
    require_preview(platform, "nabo")
    require_picture(platform, "nabo", tmp_path)
    assert state["counts"]["records"] == state["counts"]["accepted"] == len(lines)
    assert platform.topic("nabo.dead-letter") == []
    audit = platform.audit("nabo")
    assert (audit["outcome"], audit["computed"]["records"]) == ("clean", len(lines)), audit


BROKEN = [
    lambda text: text[:-1],
    lambda text: text.replace(b'"value": ', b'"value": NaN, "was": '),
    lambda text: text.replace(b'"value": ', b'"value": 1e999, "was": '),
    lambda text: text.replace(b'"value": ', b'"value": "x", "was": '),
    lambda text: text.replace(b'"device"', b'"d\xff"'),
    lambda text: text.replace(b'"timestamp": "20', b'"timestamp": "about 20'),
    lambda text: text[:-1] + b', "value": 3}',
    lambda text: b"\x00" + text,
    lambda text: b"[" * 5000 + text,
    lambda text: text.replace(b'"value": ', b'"value": ' + b"9" * 5000),
    lambda text: text.replace(b'"device": "', b'"device": "\\ud800'),
    lambda text: b"not json " + text.replace(b"{", b""),
]


@pytest.mark.guarantee("G6")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_shuffled_with_broken_lines_and_three_restarts_the_index_is_the_same(platform):
    """The index has the same documents after a shuffle, with broken lines and three restarts.

    The lines are shuffled within the allowed delay, 1 % of them are broken, and the job is stopped and started three
    times. Each broken line is in the dead-letter stream, byte for byte.
    """
    shuffle = random.Random(7)
    platform.apply(pipeline_text("nabs"))
    keyed = []
    broken = []
    for number, (time, device, value) in enumerate(readings(ALL)):
        at = time.timestamp() + shuffle.uniform(0, DISORDER_S)
        keyed.append((at, line(time, device, value)))
        if shuffle.random() < 0.01:
            spoil = BROKEN[len(broken) % len(BROKEN)]
            broken.append(spoil(line(time, device, value).replace(b"}", f', "serial": {number}}}'.encode())))
            keyed.append((at, broken[-1]))
    requests = batches(sorted(keyed))
    assert len(broken) > 400
    restarts = {len(requests) * part // 4 for part in (1, 2, 3)}
    accepted = 0
    for number, batch in enumerate(requests):
        if number in restarts:
            platform.wait_for("nabs", lambda state: state["slice"] is not None, "under way")
            platform.stop("nabs")
            platform.start("nabs")
        accepted += platform.send("nabs-machines", batch)
    assert accepted == len(keyed)
    state = platform.stop("nabs", drain=True)
    assert state["epoch"] == 4
    assert_index_is_right(platform, "nabs", ALL)
    dead = platform.topic("nabs.dead-letter")
    assert sorted(value for value, _ in dead) == sorted(broken)
    assert {headers["reason"] for _, headers in dead} == {b"decode", b"schema"}
    coordinates = {(h["stream"], h["partition"], h["offset"]) for _, h in dead}
    assert len(coordinates) == len(broken)
    counts = state["counts"]
    assert counts["records"] == len(keyed)
    assert counts["accepted"] + sum(counts["rejected"].values()) == counts["records"]
    assert sum(counts["rejected"].values()) == len(broken)
    audit = platform.audit("nabs")
    assert (audit["outcome"], audit["computed"]["records"]) == ("clean", len(keyed)), audit
