"""Exports of historians and time series databases."""

from __future__ import annotations

from tests.support.products.product import DOUBLE, LONG, STRING, TIME, Product, millis, seconds

PRODUCTS = {
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
}
