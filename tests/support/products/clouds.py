"""IoT clouds, and their envelopes."""

from __future__ import annotations

import base64
import json

from tests.support.products.product import BOOLEAN, DOUBLE, LONG, STRING, TIME, Product, at, millis, seconds

PRODUCTS = {
    "ThingsBoard": Product(
        [[{"ts": millis(one), "values": {"temperature": 22.5, "humidity": 61, "on": True}} for one in range(2)]] * 2,
        4,
        {"ts": TIME, "temperature": DOUBLE, "humidity": DOUBLE, "on": BOOLEAN},
        "$",
    ),
    "ThingsBoard Gateway": Product(
        [
            {
                name: [
                    {"ts": millis(2 * minute + one), "values": {"temperature": 42 + one, "humidity": 80}}
                    for one in range(2)
                ]
                for name in ("Device A", "Device B")
            }
            for minute in range(2)
        ],
        8,
        {"member": STRING, "ts": TIME, "temperature": DOUBLE, "humidity": DOUBLE},
        {"members": "$", "name": "member", "inner": "$"},
    ),
    "Azure Event Grid": Product(
        [
            [
                {
                    "id": f"9af86784-8d40-fe2g-8b2a-bab65e10678{minute}",
                    "topic": "/SUBSCRIPTIONS/1/RESOURCEGROUPS/2/PROVIDERS/MICROSOFT.DEVICES/IOTHUBS/3",
                    "subject": "devices/boiler",
                    "eventType": "Microsoft.Devices.DeviceTelemetry",
                    "eventTime": at(minute),
                    "data": {
                        "body": {"temperature": 20 + minute, "pressure": 101.5},
                        "properties": {"alarm": "false"},
                        "systemProperties": {
                            "iothub-connection-device-id": "boiler",
                            "iothub-enqueuedtime": at(minute),
                        },
                    },
                    "dataVersion": "",
                }
            ]
            for minute in range(3)
        ],
        3,
        {
            "id": STRING,
            "subject": STRING,
            "eventType": STRING,
            "eventTime": TIME,
            "temperature": DOUBLE,
            "pressure": DOUBLE,
            "iothub_connection_device_id": STRING,
            "iothub_enqueuedtime": TIME,
        },
        "$",
    ),
    "Azure IoT Hub": Product(
        [
            {
                "EnqueuedTimeUtc": at(minute),
                "Properties": {"level": "storage"},
                "SystemProperties": {
                    "connectionDeviceId": "boiler",
                    "contentType": "application/json",
                    "enqueuedTime": at(minute),
                },
                "Body": {"temperature": 20 + minute, "running": True},
            }
            for minute in range(3)
        ],
        3,
        {
            "EnqueuedTimeUtc": TIME,
            "connectionDeviceId": STRING,
            "enqueuedTime": TIME,
            "temperature": DOUBLE,
            "running": BOOLEAN,
        },
    ),
    "Google Pub/Sub": Product(
        [
            {
                "message": {
                    "attributes": {"deviceId": "d1"},
                    "data": base64.b64encode(
                        json.dumps({"temp": 20 + minute, "ts": seconds(minute)}).encode()
                    ).decode(),
                    "messageId": f"207046513092133{minute}",
                    "publishTime": at(minute),
                },
                "subscription": "projects/p/subscriptions/s",
            }
            for minute in range(3)
        ],
        3,
        {
            "deviceId": STRING,
            "temp": DOUBLE,
            "ts": TIME,
            "messageId": STRING,
            "publishTime": TIME,
            "subscription": STRING,
        },
    ),
    "Losant": Product(
        [{"time": millis(minute), "data": {"temperature": 72 + minute, "door": "open"}} for minute in range(2)],
        2,
        {"time": TIME, "temperature": DOUBLE, "door": STRING},
    ),
    "Particle webhook": Product(
        [
            {
                "event": "temp",
                "data": f"{21.5 + minute}",
                "published_at": at(minute),
                "coreid": "e00fce68ffffffffffffffff",
            }
            for minute in range(2)
        ],
        2,
        {"event": STRING, "data": DOUBLE, "published_at": TIME, "coreid": STRING},
    ),
    "Ubidots": Product(
        [
            {"temperature": {"value": 10 + minute, "timestamp": millis(minute), "context": {"status": "cool"}}}
            for minute in range(2)
        ],
        2,
        {"value": LONG, "timestamp": TIME, "status": STRING},
    ),
    "AWS IoT SiteWise": Product(
        [
            {
                "entries": [
                    {
                        "entryId": f"{one}",
                        "propertyAlias": f"/wind/7/{tag}",
                        "propertyValues": [
                            {
                                "value": {"doubleValue": 38.5 + minute},
                                "timestamp": {"timeInSeconds": seconds(minute), "offsetInNanos": 0},
                                "quality": "GOOD",
                            }
                            for minute in range(2)
                        ],
                    }
                    for one, tag in enumerate(("temperature", "rpm"))
                ]
            }
        ],
        4,
        {
            "entryId": STRING,
            "propertyAlias": STRING,
            "doubleValue": DOUBLE,
            "timeInSeconds": TIME,
            "offsetInNanos": LONG,
            "quality": STRING,
        },
        {"elements": "$.entries", "inner": "$.entries.propertyValues"},
    ),
    "Autodesk Fusion Connect": Product(
        [
            {
                "target": "UID998783",
                "code": "mp10",
                "time": at(minute),
                "location": {"latitude": 37.75, "longitude": -122},
                "values": [{"temp": 98.5, "humidity": 68}, {"temp": 101.5, "humidity": 70}],
            }
            for minute in range(2)
        ],
        4,
        {
            "target": STRING,
            "code": STRING,
            "time": TIME,
            "latitude": DOUBLE,
            "longitude": DOUBLE,
            "temp": DOUBLE,
            "humidity": DOUBLE,
        },
        "$.values",
    ),
    "CloudEvents": Product(
        [
            {
                "specversion": "1.0",
                "type": "io.sensors.reading.v1",
                "source": "mqtt://broker/fleet-a/temp-0042",
                "id": f"5f8e1d6a-4c3b-4a2f-9c1d-8b7e6f5a4d3{minute}",
                "time": at(minute),
                "datacontenttype": "application/json",
                "data": {"sensorId": "temp-0042", "celsius": 22 + minute, "batteryPct": 84, "rssiDbm": -67},
            }
            for minute in range(2)
        ],
        2,
        {
            "specversion": STRING,
            "type": STRING,
            "source": STRING,
            "id": STRING,
            "time": TIME,
            "sensorId": STRING,
            "celsius": DOUBLE,
        },
    ),
}
