"""Home automation."""

from __future__ import annotations

from tests.support.products.product import BOOLEAN, DOUBLE, LONG, STRING, TIME, Product, at, millis, seconds

PRODUCTS = {
    "Tasmota": Product(
        [
            {
                "Time": f"2026-01-01T00:0{minute}:00",
                "AM2301": {"Temperature": 24.6, "Humidity": 58 + minute},
                "TempUnit": "C",
            }
            for minute in range(2)
        ],
        2,
        {"Time": TIME, "Temperature": DOUBLE, "Humidity": DOUBLE, "TempUnit": STRING},
    ),
    "Zigbee2MQTT": Product(
        [
            {
                "power": 0,
                "consumption": 0.32,
                "temperature": 16,
                "linkquality": 34,
                "last_seen": at(minute),
                "state_left": "OFF",
            }
            for minute in range(2)
        ],
        2,
        {"power": DOUBLE, "consumption": DOUBLE, "temperature": DOUBLE, "last_seen": TIME, "state_left": STRING},
    ),
    "Shelly Pro EM": Product(
        [
            {
                f"em1:{one}": {"id": one, "current": 0.08, "voltage": 234.9, "act_power": 0.5 * one, "freq": 50}
                for one in range(2)
            }
        ]
        * 2,
        4,
        {"em": STRING, "id": LONG, "current": DOUBLE, "voltage": DOUBLE, "act_power": DOUBLE},
        {"members": "$", "match": r"(?P<em>em1:\d+)"},
    ),
    "Shelly Plus Plug": Product(
        [
            {
                "src": "shellyplusplugs-b0b21c0e0000",
                "dst": "shellyplusplugs-b0b21c0e0000/events",
                "method": "NotifyStatus",
                "params": {
                    "ts": seconds(minute) + 0.25,
                    "switch:0": {
                        "id": 0,
                        "aenergy": {
                            "by_minute": [451.25, 0, 45.5],
                            "minute_ts": seconds(minute),
                            "total": 10.5 + minute,
                        },
                        "apower": 27,
                    },
                },
            }
            for minute in range(3)
        ],
        3,
        {"src": STRING, "method": STRING, "ts": TIME, "id": LONG, "minute_ts": TIME, "total": DOUBLE, "apower": DOUBLE},
        left_out={"$.params.switch:0.aenergy.by_minute": "three minutes that are also in the total"},
    ),
    "Shelly 3EM": Product(
        [
            {
                "wifi_sta": {"connected": True, "ssid": "home", "ip": "192.168.0.95", "rssi": -73},
                "unixtime": seconds(minute),
                "serial": 7,
                "mac": "C45BBE7928B9",
                "emeters": [
                    {
                        "power": 10.5 * one,
                        "pf": 1,
                        "current": 0.08,
                        "voltage": 232,
                        "is_valid": True,
                        "total": 5.25 + minute,
                    }
                    for one in range(3)
                ],
                "total_power": 10.5,
            }
            for minute in range(2)
        ],
        6,
        {
            "unixtime": TIME,
            "mac": STRING,
            "power": DOUBLE,
            "pf": DOUBLE,
            "current": DOUBLE,
            "is_valid": BOOLEAN,
            "total": DOUBLE,
        },
        "$.emeters",
    ),
    "ESPHome": Product(
        [
            {"id": "sensor-living_room_temperature", "state": "19.8 °C", "value": 19.8},
            {"id": "sensor-living_room_temperature", "state": "20 °C", "value": 20},
        ],
        2,
        {"id": STRING, "state": STRING, "value": DOUBLE},
    ),
    "openHAB": Product(
        [
            {
                "name": "LivingRoom_Temperature",
                "datapoints": "2",
                "data": [{"time": millis(one), "state": f"{21.5 + one}"} for one in range(2)],
            }
        ],
        2,
        {"name": STRING, "time": TIME, "state": DOUBLE},
        "$.data",
    ),
    "Home Assistant": Product(
        [
            {
                "event_type": "state_changed",
                "data": {
                    "entity_id": "sensor.kitchen_temperature",
                    "new_state": {
                        "state": f"{20.5 + minute}",
                        "attributes": {"unit_of_measurement": "°C", "friendly_name": "Kitchen"},
                        "last_changed": at(minute),
                        "last_updated": at(minute),
                    },
                },
                "origin": "LOCAL",
                "time_fired": at(minute),
            }
            for minute in range(3)
        ],
        3,
        {"entity_id": STRING, "state": DOUBLE, "last_changed": TIME, "last_updated": TIME, "time_fired": TIME},
    ),
    "rtl_433": Product(
        [
            {"time": f"2026-06-16 07:1{minute}:57", "model": "Nexus-TH", "id": 184, "channel": 2, "battery_ok": 1}
            | {"temperature_C": 21.7, "humidity": 55 + minute}
            for minute in range(3)
        ],
        3,
        {"time": TIME, "model": STRING, "id": LONG, "channel": LONG, "temperature_C": DOUBLE, "humidity": DOUBLE},
    ),
    "Ruuvi Gateway": Product(
        [
            {
                "data": {
                    "coordinates": "",
                    "timestamp": str(seconds(minute)),
                    "nonce": str(2636366621 + minute),
                    "gw_mac": "C8:25:2D:8E:9C:2C",
                    "tags": {
                        f"C9:4F:2D:00:00:0{one}": {
                            "rssi": -50 - one,
                            "timestamp": str(seconds(minute)),
                            "data": "0201061BFF99040512FC",
                        }
                        for one in range(2)
                    },
                }
            }
            for minute in range(2)
        ],
        4,
        {"tag": STRING, "gw_mac": STRING, "rssi": LONG, "timestamp": TIME, "data": STRING},
        {"members": "$.data.tags", "name": "tag"},
    ),
}
