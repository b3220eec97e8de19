"""Weather stations and services."""

from __future__ import annotations

from tests.support.products.product import DOUBLE, LONG, STRING, TIME, Product, at, millis, seconds

PRODUCTS = {
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
    "OpenWeather": Product(
        [
            {
                "coord": {"lon": -0.13, "lat": 51.51},
                "weather": [{"id": 800, "main": "Clear", "description": "clear sky", "icon": "01n"}],
                "main": {"temp": 282.61, "pressure": 1018, "humidity": 76 + minute},
                "wind": {"speed": 3.6, "deg": 70},
                "dt": seconds(minute),
                "name": "London",
            }
            for minute in range(3)
        ],
        3,
        {"temp": DOUBLE, "speed": DOUBLE, "dt": TIME, "name": STRING, "lat": DOUBLE},
        left_out={"$.weather": "names the conditions of the reading"},
    ),
    "WeatherFlow Tempest": Product(
        [
            {
                "serial_number": "ST-00055227",
                "type": "obs_st",
                "obs": [[seconds(minute), 0, 0.13, 0.89, 308, 3, 1012.51, -6.01, 81.98]],
                "firmware_revision": 165,
            }
            for minute in range(2)
        ],
        2,
        {"serial_number": STRING, "obs_1": TIME, "obs_3": DOUBLE, "obs_7": DOUBLE},
        "$.obs",
    ),
    "Ecowitt": Product(
        [
            {
                "PASSKEY": "6A0B3C5D7E8F90123456789012345678",
                "stationtype": "GW1000_V1.5.7",
                "dateutc": f"2026-10-05 06:0{minute}:00",
                "tempf": f"{71.6 + minute}",
                "humidity": f"{55 + minute}",
                "baromrelin": "29.92",
                "winddir": "210",
                "windspeedmph": "3.1",
                "rainratein": "0.000",
                "model": "GW1000",
            }
            for minute in range(3)
        ],
        3,
        {
            "PASSKEY": STRING,
            "dateutc": TIME,
            "tempf": DOUBLE,
            "humidity": DOUBLE,
            "baromrelin": DOUBLE,
            "windspeedmph": DOUBLE,
        },
    ),
    "Ambient Weather": Product(
        [
            [
                {
                    "dateutc": millis(minute),
                    "tempinf": 70.9,
                    "tempf": 66.9 - minute,
                    "humidity": 30,
                    "windspeedmph": 0,
                    "baromrelin": 30.05,
                    "hourlyrainin": 0,
                    "date": at(minute),
                }
                for minute in range(2)
            ]
        ]
        * 2,
        4,
        {
            "dateutc": TIME,
            "tempf": DOUBLE,
            "humidity": DOUBLE,
            "windspeedmph": DOUBLE,
            "hourlyrainin": DOUBLE,
            "date": TIME,
        },
        "$",
    ),
    "Davis WeatherLink Live": Product(
        [
            {
                "data": {
                    "did": "001D0A700002",
                    "ts": seconds(minute),
                    "conditions": [
                        {
                            "lsid": 1,
                            "data_structure_type": 1,
                            "txid": 1,
                            "temp": 24.2,
                            "hum": 84.9,
                            "wind_speed_last": 2 + minute,
                        },
                        {"lsid": 3, "data_structure_type": 3, "bar_sea_level": 30.008, "bar_trend": None},
                    ],
                },
                "error": None,
            }
            for minute in range(2)
        ],
        4,
        {
            "did": STRING,
            "ts": TIME,
            "lsid": LONG,
            "data_structure_type": LONG,
            "temp": DOUBLE,
            "hum": DOUBLE,
            "bar_sea_level": DOUBLE,
        },
        "$.data.conditions",
    ),
    "Netatmo": Product(
        [
            {
                "body": {
                    "devices": [
                        {
                            "_id": "70:ee:50:00:00:14",
                            "firmware": 91,
                            "dashboard_data": {
                                "time_utc": seconds(minute),
                                "Temperature": 23.5,
                                "Noise": 42,
                                "Pressure": 997.5,
                            },
                            "modules": [
                                {
                                    "_id": f"05:00:00:00:00:1{one}",
                                    "type": "NAModule4",
                                    "battery_vp": 4103,
                                    "dashboard_data": {
                                        "time_utc": seconds(minute),
                                        "Temperature": 20.5 + one,
                                        "Humidity": 40,
                                        "CO2": 967,
                                    },
                                }
                                for one in range(2)
                            ],
                        }
                    ]
                },
                "status": "ok",
            }
            for minute in range(2)
        ],
        4,
        {
            "f_id": STRING,
            "time_utc": TIME,
            "Temperature": DOUBLE,
            "Noise": DOUBLE,
            "Pressure": DOUBLE,
            "Humidity": DOUBLE,
            "CO2": DOUBLE,
        },
        {"elements": "$.body.devices", "inner": "$.body.devices.modules"},
    ),
    "NOAA METAR": Product(
        [
            [
                {
                    "icaoId": station,
                    "receiptTime": at(minute + 5),
                    "obsTime": seconds(minute),
                    "reportTime": at(minute),
                    "temp": 15 + minute,
                    "dewp": 13,
                    "wdir": wdir,
                    "wspd": 8,
                    "visib": visib,
                    "altim": 1006.1,
                    "rawOb": "EGLL 131320Z 32008KT 9999 15/13 Q1006",
                }
                for station, wdir, visib in (("EGLL", 320, "10+"), ("KORD", "VRB", 6))
            ]
            for minute in range(2)
        ],
        4,
        {
            "icaoId": STRING,
            "obsTime": TIME,
            "reportTime": TIME,
            "temp": DOUBLE,
            "dewp": DOUBLE,
            "wdir": "any",
            "wspd": LONG,
            "visib": "any",
            "altim": DOUBLE,
        },
        "$",
    ),
}
