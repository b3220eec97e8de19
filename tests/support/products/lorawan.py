"""LoRaWAN servers, and other networks with low power."""

from __future__ import annotations

from tests.support.products.product import BOOLEAN, DOUBLE, LONG, STRING, TIME, Product, at, millis, seconds

_ARRIVAL = "describes how the uplink arrived"
_GATEWAYS = [
    {"gateway_ids": {"gateway_id": f"gw{one}"}, "rssi": -35 - one, "snr": 5.2, "time": at(1)} for one in range(2)
]

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
                    "rx_metadata": _GATEWAYS[: 1 + minute % 2],
                    "settings": {"frequency": "868300000"},
                },
            }
            for minute in range(3)
        ],
        3,
        {
            "device_id": STRING,
            "dev_eui": STRING,
            "received_at": TIME,
            "f_port": LONG,
            "f_cnt": LONG,
            "temperature": DOUBLE,
        },
        left_out={"$.uplink_message.rx_metadata": _ARRIVAL},
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
        {
            "time": TIME,
            "devEui": STRING,
            "devAddr": STRING,
            "adr": BOOLEAN,
            "fCnt": LONG,
            "fPort": LONG,
            "level": DOUBLE,
        },
        left_out={"$.rxInfo": _ARRIVAL},
    ),
    "Actility ThingPark": Product(
        [
            {
                "DevEUI_uplink": {
                    "Time": at(minute),
                    "DevEUI": "0018B20000000BEE",
                    "FPort": 1,
                    "FCntUp": 368 + minute,
                    "ADRbit": 1,
                    "payload_hex": "9e184856043000211770baae0bc9",
                    "LrrRSSI": -84.0,
                    "LrrSNR": 9.75,
                    "SpFact": 7,
                    "SubBand": "G1",
                    "Lrrid": "10001273",
                    "LrrLAT": 47.9,
                    "Lrrs": {
                        "Lrr": [{"Lrrid": "10001273", "Chain": 0, "LrrRSSI": -84.0, "LrrSNR": 9.75}] * (1 + minute % 2)
                    },
                    "CustomerID": "100002164",
                    "DevAddr": "040006CC",
                    "Frequency": 868.5,
                    "payload": {"temperature": 24 + minute, "batteryVoltage": 3017},
                }
            }
            for minute in range(3)
        ],
        3,
        {
            "Time": TIME,
            "DevEUI": STRING,
            "FPort": LONG,
            "FCntUp": LONG,
            "LrrRSSI": DOUBLE,
            "LrrSNR": DOUBLE,
            "Lrrid": STRING,
            "CustomerID": STRING,
            "DevAddr": STRING,
            "Frequency": DOUBLE,
            "temperature": DOUBLE,
        },
        left_out={"$.DevEUI_uplink.Lrrs.Lrr": _ARRIVAL},
    ),
    "Helium Console": Product(
        [
            {
                "app_eui": "6948A4B59F4666AD",
                "dev_eui": "1C29FBD1D2084E21",
                "devaddr": "B5A44869",
                "fcnt": 19 + minute,
                "hotspots": [
                    {
                        "frequency": 912.3,
                        "id": f"11KHJW{one}",
                        "name": "icy-fiery-hippo",
                        "reported_at": millis(minute),
                        "rssi": -54 - one,
                        "snr": 9.8,
                        "spreading": "SF9BW125",
                    }
                    for one in range(1 + minute % 2)
                ],
                "id": f"7c523974-4ce7-4a92-948b-55171a6e4d7{minute}",
                "name": "Soil",
                "payload": "SGVsbG8=",
                "port": 1,
                "reported_at": millis(minute),
            }
            for minute in range(3)
        ],
        3,
        {
            "app_eui": STRING,
            "dev_eui": STRING,
            "fcnt": LONG,
            "id": STRING,
            "payload": STRING,
            "port": LONG,
            "reported_at": TIME,
        },
        left_out={"$.hotspots": _ARRIVAL},
    ),
    "AWS IoT Core for LoRaWAN": Product(
        [
            {
                "WirelessDeviceId": "5b58245e-146c-4c30-9703-0ca942e3ff35",
                "PayloadData": "Cc48AAAAAAAAAAA=",
                "WirelessMetadata": {
                    "LoRaWAN": {
                        "ADR": False,
                        "Bandwidth": 125,
                        "DataRate": "0",
                        "DevAddr": "00b96cd4",
                        "DevEui": "58a0cb000202c990",
                        "FCnt": 1 + minute,
                        "FPort": 136,
                        "Frequency": "868100000",
                        "Gateways": [{"GatewayEui": "80029cfffe5cf1cc", "Snr": 9.75, "Rssi": -29}] * (1 + minute % 2),
                        "Timestamp": at(minute),
                    }
                },
            }
            for minute in range(3)
        ],
        3,
        {"WirelessDeviceId": STRING, "ADR": BOOLEAN, "DevEui": STRING, "FCnt": LONG, "FPort": LONG, "Timestamp": TIME},
        left_out={"$.WirelessMetadata.LoRaWAN.Gateways": _ARRIVAL},
    ),
    "SmartMakers ThingsHub": Product(
        [
            {
                "bandwidth": 125,
                "data_rate": "SF7 BW125 4/5",
                "dev_eui": "70B3D5E75E00470C",
                "f_cnt_up": 21144 + minute,
                "f_port": 125,
                "frequency": 867100000,
                "raw_payload": "110a000c0055393ba15468",
                "receptions": [{"gateway": "gw1", "rssi": -69, "snr": 9.2, "time": at(minute)}] * (1 + minute % 2),
                "rssi": -69,
                "spread_factor": 7,
                "time": at(minute),
            }
            for minute in range(3)
        ],
        3,
        {"dev_eui": STRING, "f_cnt_up": LONG, "f_port": LONG, "raw_payload": STRING, "rssi": LONG, "time": TIME},
        left_out={"$.receptions": _ARRIVAL},
    ),
    "Sigfox": Product(
        [
            {
                "device": "3068E",
                "data": "17ab",
                "time": str(seconds(minute)),
                "snr": "12.48",
                "station": "5859",
                "rssi": "-133.00",
                "seqNumber": str(237 + minute),
                "ack": "false",
            }
            for minute in range(3)
        ],
        3,
        {
            "device": STRING,
            "data": STRING,
            "time": TIME,
            "snr": DOUBLE,
            "station": STRING,
            "rssi": DOUBLE,
            "seqNumber": LONG,
        },
    ),
    "Blues Notehub": Product(
        [
            {
                "event": f"b6d7e5a0-0000-4000-8000-00000000000{minute}",
                "device": "dev:864475040000000",
                "when": seconds(minute),
                "received": seconds(minute) + 0.5,
                "file": "sensors.qo",
                "body": {"temp": 21 + minute, "humidity": 40},
                "best_lat": 42.5,
                "best_lon": -71,
                "best_location_when": seconds(minute),
                "bars": 3,
            }
            for minute in range(3)
        ],
        3,
        {
            "event": STRING,
            "device": STRING,
            "when": TIME,
            "received": TIME,
            "temp": DOUBLE,
            "best_lat": DOUBLE,
            "best_lon": DOUBLE,
        },
    ),
}
