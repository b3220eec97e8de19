"""Proposals for messages of real products, written from their public documentation: docs/devices.md.

For each product, the proposal is accepted, runs, keeps all readings, and has the types of the documentation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.proposals import try_proposal

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
T0 = 1_793_534_400
DOUBLE, LONG, STRING, BOOLEAN, TIME = "double", "long", "string", "boolean", "timestamp"


@dataclass(frozen=True)
class Product:
    """Messages of a product, and what its documentation says about them."""

    records: list[Any]
    rows: int
    types: dict[str, str]
    """Types in the documentation, of the fields that it describes."""
    explode: Any = None
    parts: dict[str, Any] = field(default_factory=dict)
    """Other parts of the document."""


def at(minute: int) -> str:
    return f"2026-10-05T06:{minute:02}:00Z"


LORA = [{"gateway_ids": {"gateway_id": f"gw{one}"}, "rssi": -35 - one, "snr": 5.2, "time": at(1)} for one in range(2)]
PRODUCTS = {
    "The Things Stack": Product(
        [
            {
                "end_device_ids": {"device_id": "dev1", "dev_eui": "0004A30B001C0530", "dev_addr": "00BCB929"},
                "received_at": at(minute),
                "uplink_message": {
                    "f_port": 1,
                    "f_cnt": minute,
                    "frm_payload": "gkHe",
                    "decoded_payload": {"temperature": minute, "luminosity": 0.5},
                    "rx_metadata": LORA[: 1 + minute % 2],
                    "settings": {"frequency": "868300000"},
                },
            }
            for minute in range(3)
        ],
        3,
        {"device_id": STRING, "dev_eui": STRING, "received_at": TIME, "f_port": LONG, "f_cnt": LONG, "temperature": DOUBLE},
    ),
    "ChirpStack": Product(
        [
            {
                "deduplicationId": f"3ac7e3c4-4401-4b8d-9386-a5c902f9202{minute}",
                "time": at(minute),
                "deviceInfo": {"tenantName": "ChirpStack", "devEui": "0101010101010101", "tags": {"key": "value"}},
                "devAddr": "00189440",
                "adr": False,
                "fCnt": minute,
                "fPort": 1,
                "data": "qg==",
                "object": {"level": 12.5 + minute},
                "rxInfo": [{"gatewayId": "0016c001f153a14c", "rssi": -48, "snr": 9.5}] * (1 + minute % 2),
            }
            for minute in range(3)
        ],
        3,
        {"time": TIME, "devEui": STRING, "devAddr": STRING, "adr": BOOLEAN, "fCnt": LONG, "fPort": LONG, "level": DOUBLE},
    ),
    "Tasmota": Product(
        [
            {"Time": f"2026-01-01T00:0{minute}:00", "AM2301": {"Temperature": 24.6, "Humidity": 58 + minute}, "TempUnit": "C"}
            for minute in range(2)
        ],
        2,
        {"Time": TIME, "Temperature": DOUBLE, "Humidity": DOUBLE, "TempUnit": STRING},
    ),
    "OwnTracks": Product(
        [
            {"_type": "location", "tid": "JP", "lat": 48, "lon": 16.5, "alt": 13, "batt": 91, "vel": 54, "tst": T0 + 60 * minute}
            for minute in range(2)
        ],
        2,
        {"f_type": STRING, "tid": STRING, "lat": DOUBLE, "lon": DOUBLE, "batt": LONG, "tst": TIME},
    ),
    "Traccar Client": Product(
        [
            {
                "location": {
                    "timestamp": at(minute),
                    "coords": {"latitude": 0, "longitude": 0.5, "accuracy": 0, "speed": 0, "heading": 0, "altitude": 0},
                    "is_moving": False,
                    "odometer": minute,
                    "event": "motionchange",
                    "battery": {"level": 1, "is_charging": False},
                },
                "device_id": "48241179",
            }
            for minute in range(2)
        ],
        2,
        {"timestamp": TIME, "latitude": DOUBLE, "speed": DOUBLE, "level": DOUBLE, "is_moving": BOOLEAN, "device_id": STRING},
    ),
    "Open-Meteo": Product(
        [
            {
                "latitude": 52.52,
                "current": {"time": "2026-01-01T15:00", "temperature_2m": 2.4},
                "hourly": {
                    "time": ["2026-07-01T00:00", "2026-07-01T01:00"],
                    "wind_speed_10m": [3.16, 3.02],
                    "relative_humidity_2m": [82, 83],
                },
            }
        ],
        2,
        {"time": TIME, "wind_speed_10m": DOUBLE, "relative_humidity_2m": DOUBLE, "latitude": DOUBLE},
        {"arrays": "$.hourly"},
    ),
    "Zigbee2MQTT": Product(
        [
            {"power": 0, "consumption": 0.32, "temperature": 16, "linkquality": 34, "last_seen": at(minute), "state_left": "OFF"}
            for minute in range(2)
        ],
        2,
        {"power": DOUBLE, "consumption": DOUBLE, "temperature": DOUBLE, "last_seen": TIME, "state_left": STRING},
    ),
    "OpenWeather": Product(
        [
            {
                "coord": {"lon": -0.13, "lat": 51.51},
                "weather": [{"id": 800, "main": "Clear", "description": "clear sky", "icon": "01n"}],
                "main": {"temp": 282.61, "pressure": 1018, "humidity": 76 + minute},
                "wind": {"speed": 3.6, "deg": 70},
                "dt": T0 + 60 * minute,
                "name": "London",
            }
            for minute in range(3)
        ],
        3,
        {"temp": DOUBLE, "speed": DOUBLE, "dt": TIME, "name": STRING, "lat": DOUBLE},
    ),
    "ThingsBoard": Product(
        [[{"ts": 1_000 * (T0 + one), "values": {"temperature": 22.5, "humidity": 61, "on": True}} for one in range(2)]] * 2,
        4,
        {"ts": TIME, "temperature": DOUBLE, "humidity": DOUBLE, "on": BOOLEAN},
        "$",
    ),
    "Enphase Envoy": Product(
        [
            {
                "production": [
                    {"type": "inverters", "activeCount": 58, "readingTime": T0 + 900 * minute, "wNow": 418, "whLifetime": 57},
                    {"type": "eim", "activeCount": 0, "readingTime": T0 + 900 * minute, "wNow": 542.243, "whLifetime": 0},
                ]
            }
            for minute in range(2)
        ],
        4,
        {"type": STRING, "activeCount": LONG, "readingTime": TIME, "wNow": DOUBLE},
        "$.production",
    ),
    "WeatherFlow Tempest": Product(
        [
            {
                "serial_number": "ST-00055227",
                "type": "obs_st",
                "obs": [[T0 + 60 * minute, 0, 0.13, 0.89, 308, 3, 1012.51, -6.01, 81.98]],
                "firmware_revision": 165,
            }
            for minute in range(2)
        ],
        2,
        {"serial_number": STRING, "obs_1": TIME, "obs_3": DOUBLE, "obs_7": DOUBLE},
        "$.obs",
    ),
    "Shelly Pro EM": Product(
        [
            {f"em1:{one}": {"id": one, "current": 0.08, "voltage": 234.9, "act_power": 0.5 * one, "freq": 50} for one in range(2)}
        ]
        * 2,
        4,
        {"em": STRING, "id": LONG, "current": DOUBLE, "voltage": DOUBLE, "act_power": DOUBLE},
        {"members": "$", "match": r"(?P<em>em1:\d+)"},
    ),
    "AVEVA MQTT publisher": Product(
        [{"d": 12.5, "dt": 5, "ts": at(1), "q": 192}, {"d": 13, "dt": 5, "ts": at(2), "q": 192}],
        2,
        {"d": DOUBLE, "dt": LONG, "ts": TIME, "q": LONG},
    ),
    "azeti SiteController": Product(
        [[{"processing_level": 0, "sensor_id": "Temperature", "timestamp": at(one), "value": 7.5} for one in (2, 3)]] * 2,
        4,
        {"sensor_id": STRING, "timestamp": TIME, "value": DOUBLE},
        "$",
    ),
    "Particle Tracker": Product(
        [
            {"cmd": "loc", "time": T0 + minute, "loc": {"lck": 1, "time": T0 + minute, "lat": 37, "lon": -122.4, "alt": 0}}
            for minute in range(2)
        ],
        2,
        {"cmd": STRING, "time": TIME, "lck": LONG, "lat": DOUBLE, "lon": DOUBLE, "alt": DOUBLE},
    ),
    "Kepware IoT Gateway": Product(
        [
            {
                "timestamp": 1_000 * (T0 + minute),
                "values": [
                    {"id": "Channel1.Device1.Tag1", "v": 42.5, "q": True, "t": 1_000 * (T0 + minute)},
                    {"id": "Channel1.Device1.Tag2", "v": "on", "q": True, "t": 1_000 * (T0 + minute)},
                ],
            }
            for minute in range(2)
        ],
        4,
        {"timestamp": TIME, "id": STRING, "v": "any", "q": BOOLEAN, "t": TIME},
        "$.values",
    ),
}  # fmt: skip


@pytest.mark.guarantee(
    "G946",
    "For each product in docs/devices.md, `stream infer` proposes a document that accepts all its messages, keeps each reading, "
    "and has the types of the product's documentation.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_proposal_for_a_product_keeps_all_readings_with_the_documented_types(name: str, tmp_path: Path) -> None:
    product = PRODUCTS[name]
    tried = try_proposal(b"\n".join(json.dumps(one).encode() for one in product.records) + b"\n", tmp_path)
    document = tried.proposal.document
    assert document.get("explode") == product.explode
    found = {name: spec if isinstance(spec, str) else spec["type"] for name, spec in document["schema"].items()}
    assert {name: found.get(name) for name in product.types} == product.types
    assert (len(tried.results), tried.letters, tried.proposal.rejected) == (product.rows, [], [])


def test_the_page_lists_the_products() -> None:
    listed = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    assert [one.partition("](")[0].removeprefix("[") for one in listed] == list(PRODUCTS)
