"""Proposals of `stream infer` for the shapes, types, and times of real devices. Each proposal is run over its sample."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from strandline.processing.formats.proposals import NoSampleError, infer_from_topic, infer_stream
from tests.support.proposals import try_proposal

T0 = 1_793_534_400


def lines(*records: Any) -> bytes:
    return b"\n".join(json.dumps(one).encode() for one in records) + b"\n"


def mean_by(by: str, field: str) -> list[dict[str, Any]]:
    window = {"name": "h", "tumbling": "1h", "by": [by], "aggregate": {"n": "count(*)", "mean": f"avg({field})"}}
    return [{"window": window, "emit": [{"elasticsearch": "means"}]}]


UPLINKS = [
    {
        "deviceInfo": {"devEui": "0102030405060708", "deviceName": "soil-1"},
        "time": f"2026-10-05T06:{minute:02}:00Z",
        "fPort": 2,
        "object": {"moisture": moisture},
        "rxInfo": [
            {"gatewayId": f"gw-{at}", "rssi": -90 - at, "snr": 5.5, "time": "2026-10-05T06:00:00Z"}
            for at in range(count)
        ],
    }
    for minute, moisture, count in ((10, 30.0, 3), (30, 40.0, 1))
]


@pytest.mark.guarantee(
    "G940",
    "`stream infer` proposes one row for a reading that several gateways received, and a row for each element, member, or index "
    "of a record that contains several readings. The proposal accepts the whole sample.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_a_reading_counts_once_if_several_gateways_received_it(tmp_path: Path) -> None:
    tried = try_proposal(lines(*UPLINKS), tmp_path, steps=mean_by("devEui", "moisture"))
    assert "explode" not in tried.proposal.document
    assert [(one["n"], one["mean"]) for one in tried.results] == [(2, 35.0)]
    assert any("$.rxInfo describes how a reading arrived" in note for note in tried.proposal.notes)


def test_an_array_of_receptions_is_exploded_if_no_reading_is_outside() -> None:
    scan = {"scanner": "s1", "devices": [{"mac": f"AA{at}", "rssi": -50 - at, "snr": 1.5} for at in range(3)]}
    assert infer_stream("s", lines(scan, scan)).document["explode"] == "$.devices"


SHAPES: list[tuple[str, Any, list[Any], dict[str, Any], int]] = [
    (
        "an array in each record",
        "$",
        [[{"tag": "a", "ts": T0 + at, "value": 1.5}, {"tag": "b", "ts": T0 + at, "value": 2}] for at in range(2)],
        {"tag": "string", "ts": {"type": "timestamp", "unit": "s"}, "value": "double"},
        4,
    ),
    (
        "values by position",
        None,
        [[T0 + at, 21.5, 40 + at] for at in range(3)],
        {
            "column_1": {"type": "timestamp", "unit": "s", "from": "$[0]"},
            "column_2": {"type": "double", "from": "$[1]"},
            "column_3": {"type": "long", "from": "$[2]"},
        },
        3,
    ),
    (
        "parallel arrays",
        {"arrays": "$.hourly"},
        [{"site": "s", "hourly": {"time": ["2026-10-05T00:00", "2026-10-05T01:00"], "temp": [9.5, 8]}}],
        {
            "time": {"type": "timestamp", "from": "$.hourly.time"},
            "temp": {"type": "double", "from": "$.hourly.temp"},
            "site": "string",
        },
        2,
    ),
    (
        "arrays within the elements of an array",
        {"elements": "$.items", "inner": "$.items.datapoints"},
        [
            {"items": [{"tag": tag, "datapoints": [{"ts": T0 + at, "value": 1.5} for at in range(2)]} for tag in "ab"]},
            {"items": [{"tag": "a", "datapoints": []}]},
        ],
        {
            "tag": {"type": "string", "from": "$.items.tag"},
            "ts": {"type": "timestamp", "unit": "s", "from": "$.items.datapoints.ts"},
            "value": {"type": "double", "from": "$.items.datapoints.value"},
        },
        4,
    ),
    (
        "arrays within the elements of a record that is an array",
        {"elements": "$", "inner": "$.samples"},
        [[{"site": "s", "samples": [{"at": T0 + at, "temp": 20 + at} for at in range(2)]}]] * 2,
        {
            "site": "string",
            "at": {"type": "timestamp", "unit": "s", "from": "$.samples.at"},
            "temp": {"type": "double", "from": "$.samples.temp"},
        },
        4,
    ),
    (
        "values by position within the elements of an array",
        {"elements": "$.result", "inner": "$.result.values"},
        [{"result": [{"job": job, "values": [[T0 + at, f"{at / 2}"] for at in range(3)]} for job in "ab"]}],
        {
            "job": {"type": "string", "from": "$.result.job"},
            "values_1": {"type": "timestamp", "unit": "s", "from": "$.result.values[0]"},
            "values_2": {"type": "double", "text": True, "from": "$.result.values[1]"},
        },
        6,
    ),
    (
        "an array for each member",
        {"members": "$", "name": "member", "inner": "$"},
        [{name: [{"ts": T0 + at, "temp": 21}] for name in ("Device A", "Device B")} for at in range(2)],
        {"member": "string", "ts": {"type": "timestamp", "unit": "s"}, "temp": "double"},
        4,
    ),
    (
        "members named by sensors",
        {"members": "$.ports", "name": "port"},
        [{"ts": T0 + at, "ports": {"eth0": {"rx": 5 + at, "volts": 3}, "eth1": {"rx": 7, "volts": 3.5}}} for at in range(2)],
        {"port": "string", "ts": {"type": "timestamp", "unit": "s"}, "rx": "long", "volts": "double"},
        4,
    ),
    (
        "members with a number in their names",
        {"members": "$", "match": r"(?P<ds>DS18B20\-\d+)"},
        [
            {
                "Time": f"2026-10-05T06:0{at}:00",
                "DS18B20-1": {"Id": "01A", "Temperature": 22.1},
                "DS18B20-2": {"Id": "02A", "Temperature": 19},
                "TempUnit": "C",
            }
            for at in range(2)
        ],
        {"ds": "string", "Time": "timestamp", "TempUnit": "string", "Id": "string", "Temperature": "double"},
        4,
    ),
    (
        "times as names",
        {"members": "$.prices", "name": "time"},
        [{"area": "DK1", "prices": {"2026-10-05T06:00:00Z": 0.25, "2026-10-05T07:00:00Z": 0.5}}],
        {"time": "timestamp", "area": "string", "prices": "double"},
        2,
    ),
    (
        "names in one array and rows in another",
        {"columns": "$.columns", "rows": "$.values"},
        [
            {
                "name": "cpu",
                "columns": ["time", "usage idle"],
                "values": [["2026-10-05T06:00:00Z", 97.5], ["2026-10-05T06:01:00Z", 98]],
            }
        ],
        {"name": "string", "time": "timestamp", "usage_idle": {"type": "double", "from": '$["usage idle"]'}},
        2,
    ),
    (
        "pairs of a time and a value",
        "$.datapoints",
        [
            {"metric": "flow", "datapoints": [[1_000 * (T0 + minute + at), 2.5 + at] for at in range(3)]}
            for minute in (0, 60)
        ],
        {
            "metric": "string",
            "datapoints_1": {"type": "timestamp", "unit": "ms", "from": "$.datapoints[0]"},
            "datapoints_2": {"type": "double", "from": "$.datapoints[1]"},
        },
        6,
    ),
    (
        "samples with a step",
        {"elements": "$.samples", "time": "ts", "step": "100ms"},
        [{"ts": T0 * 1000 + at * 1000, "interval_ms": 100, "samples": [0.5, 1.5, 2.5]} for at in range(2)],
        {"ts": {"type": "timestamp", "unit": "ms"}, "interval_ms": "long", "samples": "double"},
        6,
    ),
]  # fmt: skip


@pytest.mark.guarantee("G940")
@pytest.mark.parametrize(
    ("explode", "records", "schema", "rows"), [one[1:] for one in SHAPES], ids=[one[0] for one in SHAPES]
)
def test_each_shape_is_proposed_and_keeps_all_readings(
    explode: Any, records: list[Any], schema: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    sample = lines(*records) if len(records) > 1 else lines(*records, *records)
    tried = try_proposal(sample, tmp_path)
    assert tried.proposal.document.get("explode") == explode
    assert tried.proposal.document["schema"] == schema
    assert (len(tried.results), tried.letters) == (rows * (1 if len(records) > 1 else 2), [])


@pytest.mark.parametrize("encoding", ["text", "base64", "hex"])
def test_json_in_a_string_is_proposed_as_members(encoding: str, tmp_path: Path) -> None:
    inner = [json.dumps({"temp": 21.5 + at, "ts": T0 + at}) for at in range(3)]
    coded = {
        "text": str,
        "base64": lambda one: base64.b64encode(one.encode()).decode(),
        "hex": lambda one: one.encode().hex(),
    }
    tried = try_proposal(lines(*({"device": "d1", "payload": coded[encoding](one)} for one in inner)), tmp_path)
    expected = {"at": "$.payload"} | ({} if encoding == "text" else {"encoding": encoding})
    assert tried.proposal.document["embedded"] == [expected]
    assert [one["temp"] for one in tried.results] == [21.5, 22.5, 23.5]
    assert tried.proposal.document["schema"]["ts"] == {"type": "timestamp", "unit": "s", "from": "$.payload.ts"}


@pytest.mark.parametrize(("charset", "is_file"), [("latin-1", True), ("windows-1252", True), ("utf-16", False)])
def test_another_charset_is_proposed(charset: str, is_file: bool, tmp_path: Path) -> None:
    letter = "\u20ac" if charset == "windows-1252" else "\u00fc"
    sample = f"site;v\nS{letter}d;1.5\nNord;2.5\n".encode(charset)
    proposal = infer_stream("s", sample)
    assert proposal.document["charset"] == charset
    assert (proposal.accepted, proposal.rejected) == (2, [])
    if is_file:
        assert [one["site"] for one in try_proposal(sample, tmp_path, suffix=".csv").results] == [f"S{letter}d", "Nord"]
    else:
        assert any("iconv -f UTF-16 -t UTF-8" in note for note in proposal.notes)


def test_strings_that_identify_devices_stay_strings(tmp_path: Path) -> None:
    names = {
        "code": ("12E45", "120E44", "7A001"),
        "eui": ("27000001", "27000005", "2700000A"),
        "fw": ("1.10", "1.1", "1.2.1"),
    }
    records = [
        {name: values[at] for name, values in names.items()} | {"at": f"2026-10-05T06:1{at}:00Z", "t": 21.5}
        for at in range(3)
    ]
    tried = try_proposal(lines(*records[:2]), tmp_path, next_sample=lines(*records))
    assert tried.proposal.document["schema"] == {
        "code": "string",
        "eui": "string",
        "fw": "string",
        "at": "timestamp",
        "t": "double",
    }
    assert [tuple(one[name] for name in names) for one in tried.results] == [*zip(*names.values(), strict=True)]
    assert any("eui has numbers in quotes that can be identifiers" in note for note in tried.proposal.notes)
    csv = "\n".join(["code,eui,fw,v", *(f"{one['code']},{one['eui']},{one['fw']},1" for one in records[:2])])
    assert infer_stream("s", csv.encode()).document["schema"] == {
        "code": "string",
        "eui": "string",
        "fw": "string",
        "v": "long",
    }


def test_measured_strings_are_numbers_and_measured_integers_may_have_a_fraction(tmp_path: Path) -> None:
    first = [{"id": "a", "temp": 21 + at, "humidity": str(40 + at), "count": at, "steps": "5"} for at in range(3)]
    later = [{"id": "a", "temp": 26.5, "humidity": "40.5", "count": 5.0, "steps": "6"}]
    tried = try_proposal(lines(*first), tmp_path, next_sample=lines(*later))
    schema = tried.proposal.document["schema"]
    assert (schema["temp"], schema["humidity"], schema["count"]) == ("double", {"type": "double", "text": True}, "long")
    assert [(one["temp"], one["humidity"], one["count"]) for one in tried.results] == [(26.5, 40.5, 5)]
    note = infer_stream("s", lines({"id": "a", "x": 1}, {"id": "b", "x": 2})).notes[0]
    assert note.startswith("x: all values of the sample are integers, and a fraction, as 26.5, would be rejected")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("apower", "double"),
        ("hourlyrainin", "double"),
        ("windspeedmph", "double"),
        ("total_export_kwh", "double"),
        ("co2", "double"),
        ("estimated_co2", "double"),
        ("total", "long"),
        ("attempts", "long"),
        ("days", "long"),
    ],
)
def test_a_quantity_or_a_unit_within_a_name_makes_integers_measured(name: str, kind: str) -> None:
    assert infer_stream("s", lines({"id": "a", name: 1}, {"id": "b", name: 2})).document["schema"][name] == kind


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("specversion", ["1.0", "1.0"], "string"),
        ("value", ["2500", "16.5"], {"type": "double", "text": True}),
        ("value", ["0012", "0013"], "string"),
        ("model_value", ["2500", "16.5"], "string"),
    ],
)
def test_numbers_in_quotes_are_numbers_if_the_name_only_states_that_they_are_values(
    name: str, values: list[str], kind: Any
) -> None:
    records = [{"measurand": "a", name: value} for value in values]
    assert infer_stream("s", lines(*records)).document["schema"][name] == kind


def test_receptions_are_recognised_by_the_words_of_their_members(tmp_path: Path) -> None:
    uplinks = [
        {
            "Time": f"2026-10-05T06:0{at}:00Z",
            "payload": {"temp": 20.5},
            "Lrr": [{"LrrRSSI": -84, "LrrSNR": 9.75}] * (1 + at % 2),
        }
        for at in range(3)
    ]
    tried = try_proposal(lines(*uplinks), tmp_path)
    assert ("explode" not in tried.proposal.document, len(tried.results)) == (True, 3)


@pytest.mark.parametrize(
    "record",
    [
        {"at": T0, "total": 7, "planes": [{"id": "a", "total": 5}]},
        {"at": T0, "total": 7, "names": ["id", "total"], "data": [["a", 5]]},
    ],
)
def test_a_value_of_the_record_is_named_if_a_value_of_its_rows_hides_it(record: dict[str, Any], tmp_path: Path) -> None:
    tried = try_proposal(lines(record, record), tmp_path)
    assert [row["total"] for row in tried.results] == [5, 5]
    assert "$.total of the record is left out, because its rows have a value of this name" in tried.proposal.notes


def test_an_array_named_like_labels_is_exploded_if_only_a_time_is_outside(tmp_path: Path) -> None:
    records = [
        {"at": 1_000 * (T0 + at), "tags": [{"name": "a", "value": 5}, {"name": "b", "value": 6}]} for at in range(3)
    ]
    tried = try_proposal(lines(*records), tmp_path)
    assert (tried.proposal.document["explode"], len(tried.results)) == ("$.tags", 6)


@pytest.mark.guarantee(
    "G941",
    "`stream infer` proposes the usual markers of missing values, and a field of type `any` for values of several types. A "
    "marker costs its value, never its record.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_markers_of_missing_values_are_proposed(tmp_path: Path) -> None:
    cells = [[f"{at + 0.5}", f"{at}", "55.5"] for at in range(10)]
    cells[3][0], cells[5][1], cells[7][2] = "Bad", "No Data", "-9999"
    text = "at,flow,temp,level\n" + "".join(
        f"2026-10-05 06:{at:02}:00,{','.join(row)}\n" for at, row in enumerate(cells)
    )
    tried = try_proposal(text.encode(), tmp_path, suffix=".csv")
    assert tried.letters == []
    assert [sum(one[name] is not None for one in tried.results) for name in ("flow", "temp", "level")] == [9, 9, 9]
    sample = b'{"e":1.5,"temp":nan}\n{"e":2.5,"temp":21.5}\n{"e":3.5,"temp":"unavailable"}\n'
    tried = try_proposal(sample, tmp_path)
    assert [(one["e"], one["temp"]) for one in tried.results] == [(1.5, None), (2.5, 21.5), (3.5, None)]


@pytest.mark.guarantee("G941")
def test_values_of_several_types_are_kept_as_they_were_written(tmp_path: Path) -> None:
    values = [12.5, True, "A-17", 4711, False]
    record = {"ts": T0 * 1000, "values": [{"id": f"n{at}", "v": value} for at, value in enumerate(values)]}
    steps = [{"derive": {"number": "try_cast(v as double)"}}, {"emit": [{"elasticsearch": "tags"}]}]
    tried = try_proposal(lines(record, record), tmp_path, steps=steps)
    assert tried.letters == []
    assert [(one["v"], one["number"]) for one in tried.results[:5]] == [
        ("12.5", 12.5), ("true", None), ("A-17", None), ("4711", 4711.0), ("false", None),
    ]  # fmt: skip


@pytest.mark.guarantee(
    "G942",
    "The delay that `stream infer` proposes counts all rows of the sample in their windows, in the order of the sample.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_the_delay_is_that_of_the_order_of_the_sample(tmp_path: Path) -> None:
    rows = [
        f"st-{station},2024-01-{day:02}T{hour:02}:00:00Z,{hour}.5"
        for station in (1, 2, 3)
        for day in range(1, 16)
        for hour in range(24)
    ]
    sample = "\n".join(["station,at,temp", *rows]).encode()
    tried = try_proposal(sample, tmp_path, steps=mean_by("station", "temp"), suffix=".csv")
    assert tried.letters == []
    assert sum(one["n"] for one in tried.results) == len(rows) == 1_080
    assert "for a pipeline: event_time: {field: at, delay: 2w1d}" in tried.proposal.notes
    assert any(
        note.startswith("the sample is sorted by station first, so a row is up to 2w") for note in tried.proposal.notes
    )
    assert tried.proposal.document["retention"] == "forever"


def test_times_are_recognised_by_their_values(tmp_path: Path) -> None:
    records = [{"_type": "location", "seen": T0 + 60 * at, "power": 1_793_534_400 + at, "n": at} for at in range(4)]
    tried = try_proposal(lines(*records), tmp_path)
    assert tried.proposal.document["schema"]["seen"] == {"type": "timestamp", "unit": "s"}
    assert tried.proposal.document["schema"]["power"] == "double"
    assert (len(tried.results), tried.letters) == (4, [])
    counts = [{"pulses": T0 + at, "value": T0 - at} for at in range(4)]
    assert infer_stream("s", lines(*counts)).document["schema"] == {"pulses": "long", "value": "long"}


def test_a_date_and_a_clock_are_one_time(tmp_path: Path) -> None:
    text = "Date;Time;kw\n" + "".join(f"16/12/2026;00:{at:02}:00;{at}.5\n" for at in range(5))
    tried = try_proposal(text.encode(), tmp_path, suffix=".csv")
    assert tried.proposal.document["schema"]["at"] == {
        "type": "timestamp",
        "from": ["$.Date", "$.Time"],
        "pattern": "dd/MM/yyyy HH:mm:ss",
    }
    assert [one["at"] for one in tried.results][::4] == ["2026-12-16T00:00:00.000Z", "2026-12-16T00:04:00.000Z"]
    either = infer_stream("s", b"Date;Time;kw\n1/2/2026;00:00:00;1.5\n1/3/2026;00:00:00;1.5\n")
    assert either.document["schema"] == {"Date": "string", "Time": "string", "kw": "double"}
    assert any("$.Date and $.Time are one time" in note for note in either.notes)


def test_records_of_a_topic_that_are_arrays_are_proposed_too() -> None:
    records = [json.dumps([{"ts": T0, "v": 1.5}, {"ts": T0 + 1, "v": 2.5}]).encode()] * 3
    proposal = infer_from_topic("s", records, 4, "7d")
    assert (proposal.document["explode"], proposal.accepted) == ("$", 6)
    with pytest.raises(NoSampleError, match="arrays of different forms"):
        infer_from_topic("s", [b'[1, {"a": 2}]', b'[1, {"a": 3}]'], 4, "7d")
