"""Buildings and the air in them."""

from __future__ import annotations

from tests.support.products.product import DOUBLE, LONG, STRING, TIME, Product, at, seconds

PRODUCTS = {
    "Airthings": Product(
        [
            {
                "data": {
                    "battery": 100,
                    "co2": 700 + minute,
                    "humidity": 29,
                    "pressure": 1013.5,
                    "radonShortTermAvg": 25,
                    "temp": 22,
                    "time": seconds(5 * minute),
                    "voc": 110,
                    "relayDeviceType": "hub",
                }
            }
            for minute in range(2)
        ],
        2,
        {
            "battery": LONG,
            "co2": DOUBLE,
            "humidity": DOUBLE,
            "pressure": DOUBLE,
            "temp": DOUBLE,
            "time": TIME,
            "voc": DOUBLE,
        },
    ),
    "Awair": Product(
        [
            {
                "timestamp": at(minute),
                "score": 88,
                "dew_point": 9.5,
                "temp": 21 + minute,
                "humid": 47.75,
                "abs_humid": 8.75,
                "co2": 561,
                "voc": 120,
                "voc_baseline": 2456789,
                "pm25": 4,
            }
            for minute in range(2)
        ],
        2,
        {
            "timestamp": TIME,
            "score": LONG,
            "dew_point": DOUBLE,
            "temp": DOUBLE,
            "humid": DOUBLE,
            "co2": DOUBLE,
            "voc": DOUBLE,
            "pm25": DOUBLE,
        },
    ),
    "Project Haystack": Product(
        [
            {
                "_kind": "grid",
                "meta": {"ver": "3.0", "id": {"_kind": "ref", "val": "p:demo:r:1"}},
                "cols": [{"name": "ts"}, {"name": "val"}],
                "rows": [
                    {
                        "ts": {"_kind": "dateTime", "val": at(one), "tz": "London"},
                        "val": {"_kind": "number", "val": 21 + one, "unit": "°C"},
                    }
                    for one in range(3)
                ],
            }
        ],
        3,
        {"val": STRING, "ts_val": TIME, "val_val": LONG, "unit": STRING},
        "$.rows",
        left_out={"$.cols": "names the columns, which each row names too"},
    ),
    "knx2mqtt": Product(
        [
            {
                "Time": f"2026-01-25T16:4{minute}:00+01:00",
                "Gateway": "192.168.1.50",
                "Command": "Write",
                "Source": "1.4.50",
                "Destination": "5/0/27",
                "Data": "AQ==",
            }
            for minute in range(2)
        ],
        2,
        {"Time": TIME, "Gateway": STRING, "Command": STRING, "Source": STRING, "Destination": STRING, "Data": STRING},
    ),
    "PurpleAir": Product(
        [
            {
                "api_version": "V1.0.11-0.0.56",
                "time_stamp": seconds(60),
                "sensor_index": 175413,
                "average": 10,
                "fields": ["time_stamp", "humidity", "pm2.5_atm"],
                "data": [[seconds(10 * one), 38, 4.5 + one] for one in range(3)],
            }
        ],
        3,
        {"api_version": STRING, "sensor_index": LONG, "humidity": DOUBLE, "pm2_5_atm": DOUBLE, "time_stamp": TIME},
        {"columns": "$.fields", "rows": "$.data"},
        left_out={"$.fields": "the names of the columns", "$.time_stamp": "a column has this name"},
    ),
}
