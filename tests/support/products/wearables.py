"""Wearables, scales, and health records."""

from __future__ import annotations

from tests.support.products.product import DOUBLE, LONG, STRING, TIME, Product, at, millis, seconds

PRODUCTS = {
    "Fitbit": Product(
        [
            {
                "activities-heart": [{"dateTime": "2026-10-05", "value": "64.2"}],
                "activities-heart-intraday": {
                    "dataset": [{"time": f"00:0{one}:00", "value": 64 + one} for one in range(3)],
                    "datasetInterval": 1,
                    "datasetType": "minute",
                },
            }
        ],
        3,
        {"time": STRING, "value": LONG, "datasetInterval": LONG, "datasetType": STRING},
        '$["activities-heart-intraday"].dataset',
        left_out={
            "$.activities-heart": 'one object for the day; read it by a path, as $["activities-heart"][0].dateTime'
        },
    ),
    "Withings": Product(
        [
            {
                "status": 0,
                "body": {
                    "updatetime": seconds(9),
                    "timezone": "Europe/Paris",
                    "measuregrps": [
                        {
                            "grpid": 12 + group,
                            "attrib": 1,
                            "date": seconds(group),
                            "category": 1,
                            "deviceid": "892359876fd8805ac45bab078c4828692f0276b1",
                            "measures": [
                                {"value": 65750, "type": 1, "unit": -3},
                                {"value": 580 + group, "type": 8, "unit": -2},
                            ],
                        }
                        for group in range(2)
                    ],
                },
            }
        ],
        4,
        {"grpid": LONG, "date": TIME, "category": LONG, "deviceid": STRING, "value": LONG, "type": LONG, "unit": LONG},
        {"elements": "$.body.measuregrps", "inner": "$.body.measuregrps.measures"},
    ),
    "Oura": Product(
        [
            {
                "data": [
                    {"bpm": 60 + one, "source": "sleep", "timestamp": at(one), "timestamp_unix": millis(one)}
                    for one in range(3)
                ],
                "next_token": None,
            }
        ],
        3,
        {"bpm": LONG, "source": STRING, "timestamp": TIME, "timestamp_unix": TIME},
        "$.data",
    ),
    "Junction (Vital)": Product(
        [
            {
                "data": [
                    {
                        "id": f"01HG2P5Q3R8S9T0V1W2X3Y4Z5{one}",
                        "timestamp": at(one),
                        "value": 56 + one,
                        "unit": "bpm",
                        "timezone_offset": -14400,
                        "source": {"provider": "oura", "type": "ring", "name": "Ring"},
                    }
                    for one in range(2)
                ],
                "next_cursor": None,
            }
        ],
        2,
        {"id": STRING, "timestamp": TIME, "value": LONG, "unit": STRING, "timezone_offset": LONG, "provider": STRING},
        "$.data",
    ),
    "Health Auto Export": Product(
        [
            {
                "data": {
                    "metrics": [
                        {
                            "name": name,
                            "units": units,
                            "data": [
                                {"date": f"2026-10-05 0{hour}:00:00 +0200", "qty": 12.5 + hour, "source": "Watch"}
                                for hour in range(2)
                            ],
                        }
                        for name, units in (("heart_rate", "bpm"), ("active_energy", "kcal"))
                    ]
                }
            }
        ],
        4,
        {"name": STRING, "units": STRING, "date": TIME, "qty": DOUBLE, "source": STRING},
        {"elements": "$.data.metrics", "inner": "$.data.metrics.data"},
    ),
    "Apple Health CSV": Product(
        [
            "type,sourceName,sourceVersion,productType,startDate,endDate,unit,value",
            *(
                f"HKQuantityTypeIdentifierHeartRate,Watch,10.1,Watch6 9,"
                f"2026-10-05 06:0{one}:00 +0000,2026-10-05 06:0{one}:05 +0000,"
                f"count/min,{60.5 + one}"
                for one in range(3)
            ),
        ],
        3,
        {
            "type": STRING,
            "sourceName": STRING,
            "sourceVersion": STRING,
            "startDate": TIME,
            "endDate": TIME,
            "unit": STRING,
            "value": DOUBLE,
        },
        format="csv",
    ),
}
