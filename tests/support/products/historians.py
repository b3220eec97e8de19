"""Exports of historians and time series databases."""

from __future__ import annotations

from tests.support.products.product import BOOLEAN, DOUBLE, LONG, STRING, TIME, Product, at, millis, seconds

PRODUCTS = {
    "PI Web API": Product(
        [
            {
                "Items": [
                    {
                        "WebId": f"I1AbEDqD5loBNH0erqeqJodtALA{tag}",
                        "Name": tag,
                        "Items": [
                            {
                                "Timestamp": at(one),
                                "UnitsAbbreviation": "m",
                                "Good": True,
                                "Questionable": False,
                                "Value": 12.5 + one,
                            }
                            for one in range(2)
                        ],
                        "UnitsAbbreviation": "m",
                    }
                    for tag in ("Level", "Depth")
                ],
            }
        ],
        4,
        {"WebId": STRING, "Name": STRING, "Timestamp": TIME, "Good": BOOLEAN, "Questionable": BOOLEAN, "Value": DOUBLE},
        {"elements": "$.Items", "inner": "$.Items.Items"},
    ),
    "Prometheus": Product(
        [
            {
                "status": "success",
                "data": {
                    "resultType": "matrix",
                    "result": [
                        {
                            "metric": {"__name__": "up", "job": job, "instance": "localhost:9090"},
                            "values": [[seconds(one) + 0.75, f"{0.5 * one}"] for one in range(3)],
                        }
                        for job in ("prometheus", "node")
                    ],
                },
            }
        ],
        6,
        {
            "resultType": STRING,
            "f_name__": STRING,
            "job": STRING,
            "instance": STRING,
            "values_1": TIME,
            "values_2": DOUBLE,
        },
        {"elements": "$.data.result", "inner": "$.data.result.values"},
    ),
    "InfluxDB line protocol": Product(
        [f"home,room=Kitchen temp={21 + one},hum=35.9,co=0i {millis(one)}000000" for one in range(3)],
        3,
        {"measurement": STRING, "room": STRING, "temp": DOUBLE, "hum": DOUBLE, "co": LONG, "time": TIME},
        format="influx",
    ),
    "Telegraf": Product(
        [
            {
                "metrics": [
                    {
                        "fields": {"usage_idle": 92.5, "usage_user": 4},
                        "name": "cpu",
                        "tags": {"host": "raynor", "cpu": f"cpu{one}"},
                        "timestamp": seconds(minute),
                    }
                    for one in range(2)
                ]
            }
            for minute in range(2)
        ],
        4,
        {"usage_idle": DOUBLE, "usage_user": DOUBLE, "name": STRING, "host": STRING, "cpu": STRING, "timestamp": TIME},
        "$.metrics",
    ),
    "Cognite": Product(
        [
            {
                "items": [
                    {
                        "id": 1 + one,
                        "externalId": f"tag-{one}",
                        "isString": False,
                        "unit": "bar",
                        "datapoints": [{"timestamp": millis(minute), "value": 5.25 + minute} for minute in range(2)],
                    }
                    for one in range(2)
                ]
            }
        ],
        4,
        {"id": LONG, "externalId": STRING, "isString": BOOLEAN, "unit": STRING, "timestamp": TIME, "value": DOUBLE},
        {"elements": "$.items", "inner": "$.items.datapoints"},
    ),
}
