"""Gateways of PLCs and fieldbuses."""

from __future__ import annotations

from tests.support.products.product import ANY, BOOLEAN, DOUBLE, LONG, STRING, TIME, Product, at, millis, seconds

PRODUCTS = {
    "Kepware IoT Gateway": Product(
        [
            {
                "timestamp": millis(minute),
                "values": [
                    {"id": "Channel1.Device1.Tag1", "v": 42.5, "q": True, "t": millis(minute)},
                    {"id": "Channel1.Device1.Tag2", "v": "on", "q": True, "t": millis(minute)},
                ],
            }
            for minute in range(2)
        ],
        4,
        {"timestamp": TIME, "id": STRING, "v": ANY, "q": BOOLEAN, "t": TIME},
        "$.values",
    ),
    "AVEVA MQTT publisher": Product(
        [{"d": 12.5, "dt": 5, "ts": at(1), "q": 192}, {"d": 13, "dt": 5, "ts": at(2), "q": 192}],
        2,
        {"d": DOUBLE, "dt": LONG, "ts": TIME, "q": LONG},
    ),
    "azeti SiteController": Product(
        [[{"processing_level": 0, "sensor_id": "Temperature", "timestamp": at(one), "value": 7.5} for one in (2, 3)]]
        * 2,
        4,
        {"sensor_id": STRING, "timestamp": TIME, "value": DOUBLE},
        "$",
    ),
    "Siemens Industrial Edge": Product(
        [
            {
                "seq": 84631 + minute,
                "vals": [
                    {"id": "101", "qc": 3, "ts": at(minute), "val": 12.5 + minute},
                    {"id": "102", "qc": 3, "ts": at(minute), "val": 7},
                ],
            }
            for minute in range(2)
        ],
        4,
        {"seq": LONG, "id": STRING, "qc": LONG, "ts": TIME, "val": DOUBLE},
        "$.vals",
    ),
    "EMQX Neuron": Product(
        [
            {
                "node": "modbus",
                "group": "grp",
                "timestamp": millis(minute),
                "tags": [{"name": "tag0", "value": 123}, {"name": "tag1", "error": 2014}],
            }
            for minute in range(2)
        ],
        4,
        {"node": STRING, "group": STRING, "timestamp": TIME, "name": STRING, "value": LONG, "error": LONG},
        "$.tags",
    ),
    "Ignition Cloud Injector": Product(
        [
            {
                "topic": {
                    "namespace": "spBv1.0",
                    "groupId": "G1",
                    "edgeNodeId": "E1",
                    "deviceId": "D1",
                    "type": "DDATA",
                },
                "payload": {
                    "timestamp": millis(minute),
                    "metrics": [
                        {"name": "Ramp", "timestamp": millis(minute), "dataType": "Float", "value": 1.5 + minute},
                        {"name": "Running", "timestamp": millis(minute), "dataType": "Boolean", "value": True},
                    ],
                    "seq": minute,
                },
            }
            for minute in range(2)
        ],
        4,
        {
            "groupId": STRING,
            "edgeNodeId": STRING,
            "type": STRING,
            "name": STRING,
            "timestamp": TIME,
            "dataType": STRING,
            "value": ANY,
        },
        "$.payload.metrics",
    ),
    "Beckhoff TwinCAT": Product(
        [
            {
                "Timestamp": f"2026-08-04T07:1{minute}:06.176",
                "GroupName": "Hall 1",
                "Values": {"bOn": True, "fTemperature": 21 + minute, "stFan": {"nSpeed": 1200, "sMode": "auto"}},
                "MetaData": {"fTemperature": {"iot.Unit": "°C"}},
            }
            for minute in range(2)
        ],
        2,
        {
            "Timestamp": TIME,
            "GroupName": STRING,
            "bOn": BOOLEAN,
            "fTemperature": DOUBLE,
            "nSpeed": DOUBLE,
            "sMode": STRING,
        },
    ),
    "Teltonika RUT": Product(
        [
            {
                "TS": str(seconds(minute)),
                "D": f"2026-10-05 06:0{minute}:00",
                "MAC": "C9:4F:2D:00:00:01",
                "DT": "0201061BFF9904",
            }
            for minute in range(2)
        ],
        2,
        {"TS": TIME, "D": TIME, "MAC": STRING, "DT": STRING},
    ),
    "OPC UA PubSub": Product(
        [
            {
                "MessageId": f"32235546-05d9-4fd7-97df-ea3ff3408574-{minute}",
                "MessageType": "ua-data",
                "PublisherId": "MQTT-Localhost",
                "Messages": [
                    {
                        "DataSetWriterId": one,
                        "SequenceNumber": 18 + minute,
                        "Timestamp": at(minute),
                        "Payload": {"Pressure": {"Value": 7 + one, "SourceTimestamp": at(minute)}},
                    }
                    for one in (1, 2)
                ],
            }
            for minute in range(2)
        ],
        4,
        {
            "MessageId": STRING,
            "PublisherId": STRING,
            "DataSetWriterId": LONG,
            "SequenceNumber": LONG,
            "Timestamp": TIME,
            "SourceTimestamp": TIME,
        },
        "$.Messages",
    ),
}
