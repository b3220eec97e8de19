"""Meters, inverters, batteries, and charge points."""

from __future__ import annotations

from tests.support.products.product import DOUBLE, LONG, STRING, TIME, Product, at, seconds

PRODUCTS = {
    "Enphase Envoy": Product(
        [
            {
                "production": [
                    {
                        "type": "inverters",
                        "activeCount": 58,
                        "readingTime": seconds(15 * minute),
                        "wNow": 418,
                        "whLifetime": 57,
                    },
                    {
                        "type": "eim",
                        "activeCount": 0,
                        "readingTime": seconds(15 * minute),
                        "wNow": 542.243,
                        "whLifetime": 0,
                    },
                ]
            }
            for minute in range(2)
        ],
        4,
        {"type": STRING, "activeCount": LONG, "readingTime": TIME, "wNow": DOUBLE},
        "$.production",
    ),
    "Fronius Solar API": Product(
        [
            {
                "Body": {
                    "Data": {
                        "Inverters": {
                            str(one): {"DT": 99, "P": 100.5 + one, "SOC": 50.5, "E_Day": 1393.2, "E_Total": 1734796.1}
                            for one in (1, 2)
                        },
                        "Site": {"Mode": "produce-only", "P_PV": 349.5, "P_Grid": None, "rel_Autonomy": 100},
                        "Version": "12",
                    }
                },
                "Head": {"Status": {"Code": 0, "Reason": ""}, "Timestamp": f"2026-10-05T06:0{minute}:00+02:00"},
            }
            for minute in range(2)
        ],
        4,
        {
            "inverter": STRING,
            "P": DOUBLE,
            "SOC": DOUBLE,
            "E_Day": DOUBLE,
            "E_Total": DOUBLE,
            "P_PV": DOUBLE,
            "Timestamp": TIME,
        },
        {"members": "$.Body.Data.Inverters", "name": "inverter"},
    ),
    "Victron GX": Product([{"value": 53.1}, {"value": 53}, {"value": None}], 3, {"value": DOUBLE}),
    "Tibber Pulse": Product(
        [
            {
                "type": "next",
                "id": "1",
                "payload": {
                    "data": {
                        "liveMeasurement": {
                            "timestamp": at(minute),
                            "power": 1200 + minute,
                            "lastMeterConsumption": 62535.5,
                            "accumulatedConsumption": 9.5,
                            "accumulatedCost": 1.25,
                            "currency": "NOK",
                            "minPower": 90,
                            "powerFactor": 1,
                            "voltagePhase1": None,
                            "currentL1": 2,
                        }
                    }
                },
            }
            for minute in range(2)
        ],
        2,
        {
            "timestamp": TIME,
            "power": DOUBLE,
            "lastMeterConsumption": DOUBLE,
            "accumulatedCost": DOUBLE,
            "currency": STRING,
        }
        | {"minPower": DOUBLE, "powerFactor": DOUBLE, "currentL1": DOUBLE},
    ),
    "HomeWizard P1": Product(
        [
            {
                "wifi_ssid": "home",
                "wifi_strength": 77,
                "smr_version": 50,
                "meter_model": "ISKRA 2M550T-101",
                "total_power_import_t1_kwh": 8874.5 + minute,
                "total_power_export_t1_kwh": 0,
                "active_power_w": -543,
                "active_power_l1_w": -676,
                "total_gas_m3": 2569.646,
                "gas_timestamp": 261005060000 + 10000 * minute,
            }
            for minute in range(2)
        ],
        2,
        {
            "wifi_ssid": STRING,
            "total_power_import_t1_kwh": DOUBLE,
            "total_power_export_t1_kwh": DOUBLE,
            "active_power_w": DOUBLE,
            "active_power_l1_w": DOUBLE,
            "total_gas_m3": DOUBLE,
        },
    ),
    "OCPP 1.6": Product(
        [
            {
                "connectorId": 1,
                "transactionId": 1234,
                "meterValue": [
                    {
                        "timestamp": at(minute),
                        "sampledValue": [
                            {"value": f"{2500 + minute}", "measurand": "Energy.Active.Import.Register", "unit": "Wh"},
                            {"value": "16.5", "measurand": "Current.Import", "unit": "A", "phase": "L1"},
                        ],
                    }
                ],
            }
            for minute in range(2)
        ],
        4,
        {
            "connectorId": LONG,
            "transactionId": LONG,
            "timestamp": TIME,
            "value": DOUBLE,
            "measurand": STRING,
            "unit": STRING,
        },
        {"elements": "$.meterValue", "inner": "$.meterValue.sampledValue"},
    ),
    "SolarEdge": Product(
        [
            {
                "overview": {
                    "lastUpdateTime": f"2026-10-05 06:0{minute}:00",
                    "lifeTimeData": {"energy": 761985.75, "revenue": 946.13},
                    "lastDayData": {"energy": 22000 + minute},
                    "currentPower": {"power": 304},
                    "measuredBy": "INVERTER",
                }
            }
            for minute in range(2)
        ],
        2,
        {"lastUpdateTime": TIME, "energy": DOUBLE, "revenue": DOUBLE, "lastDayData_energy": DOUBLE, "power": DOUBLE},
    ),
    "OpenEVSE": Product(
        [
            {
                "mode": "STA",
                "srssi": -73,
                "ipaddress": "192.168.1.43",
                "amp": 0,
                "pilot": 32,
                "temp1": 282,
                "state": 254,
                "elapsed": 3473,
                "session_energy": 25034 + minute,
                "total_energy": 998.5,
                "gfcicount": 0,
                "time": at(minute),
            }
            for minute in range(2)
        ],
        2,
        {
            "mode": STRING,
            "amp": DOUBLE,
            "pilot": LONG,
            "state": LONG,
            "session_energy": DOUBLE,
            "total_energy": DOUBLE,
            "time": TIME,
        },
    ),
    "IoTaWatt": Product(
        [[[f"2026-10-05T06:0{one}:00", 1512.3 + one, 240, 0.98] for one in range(3)]] * 2,
        6,
        {"column_1": TIME, "column_2": DOUBLE, "column_4": DOUBLE},
        "$",
    ),
}
