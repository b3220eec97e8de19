"""Vehicles, ships, and aircraft."""

from __future__ import annotations

from tests.support.products.product import BOOLEAN, DOUBLE, LONG, STRING, TIME, Product, at, seconds

PRODUCTS = {
    "OwnTracks": Product(
        [
            {
                "_type": "location",
                "tid": "JP",
                "lat": 48,
                "lon": 16.5,
                "alt": 13,
                "batt": 91,
                "vel": 54,
                "tst": seconds(minute),
            }
            for minute in range(2)
        ],
        2,
        {"f_type": STRING, "tid": STRING, "lat": DOUBLE, "lon": DOUBLE, "batt": LONG, "tst": TIME},
    ),
    "Traccar Client": Product(
        [
            {
                "location": {
                    "timestamp": at(minute),
                    "coords": {"latitude": 0, "longitude": 0.5, "accuracy": 0, "speed": 0, "heading": 0, "altitude": 0},
                    "is_moving": False,
                    "odometer": minute,
                    "event": "motionchange",
                    "battery": {"level": 1, "is_charging": False},
                },
                "device_id": "48241179",
            }
            for minute in range(2)
        ],
        2,
        {
            "timestamp": TIME,
            "latitude": DOUBLE,
            "speed": DOUBLE,
            "level": DOUBLE,
            "is_moving": BOOLEAN,
            "device_id": STRING,
        },
    ),
    "Traccar": Product(
        [
            {
                "position": {
                    "id": 12345 + minute,
                    "deviceId": 10,
                    "protocol": "teltonika",
                    "serverTime": at(minute + 1),
                    "deviceTime": at(minute),
                    "fixTime": at(minute),
                    "valid": True,
                    "latitude": -23.55,
                    "longitude": -46,
                    "altitude": 760,
                    "speed": 13.5,
                    "course": 180,
                    "attributes": {"ignition": True, "odometer": 101944000, "sat": 14},
                },
                "device": {"id": 10, "name": "Car 1", "uniqueId": "359632106090555", "status": "online"},
            }
            for minute in range(2)
        ],
        2,
        {
            "id": LONG,
            "deviceId": LONG,
            "protocol": STRING,
            "serverTime": TIME,
            "fixTime": TIME,
            "valid": BOOLEAN,
            "latitude": DOUBLE,
            "longitude": DOUBLE,
            "altitude": DOUBLE,
            "speed": DOUBLE,
            "course": DOUBLE,
            "ignition": BOOLEAN,
            "uniqueId": STRING,
        },
    ),
    "Particle Tracker": Product(
        [
            {
                "cmd": "loc",
                "time": seconds(minute),
                "loc": {"lck": 1, "time": seconds(minute), "lat": 37, "lon": -122.4, "alt": 0},
            }
            for minute in range(2)
        ],
        2,
        {"cmd": STRING, "time": TIME, "lck": LONG, "lat": DOUBLE, "lon": DOUBLE, "alt": DOUBLE},
    ),
    "Geotab": Product(
        [
            {
                "result": {
                    "data": [
                        {
                            "id": f"b{one}",
                            "dateTime": at(minute),
                            "device": {"id": "b7"},
                            "latitude": 43.5,
                            "longitude": -79.7,
                            "speed": 62,
                        }
                        for one in range(2)
                    ],
                    "toVersion": "00000000eaa1b5c3",
                }
            }
            for minute in range(2)
        ],
        4,
        {"id": STRING, "dateTime": TIME, "latitude": DOUBLE, "longitude": DOUBLE, "speed": DOUBLE, "toVersion": STRING},
        "$.result.data",
    ),
    "aisstream.io": Product(
        [
            {
                "MessageType": "PositionReport",
                "MetaData": {"MMSI": 259000420, "ShipName": "AUGUSTSON", "latitude": 66.02, "longitude": 12.25},
                "Message": {
                    "PositionReport": {
                        "MessageID": 1,
                        "UserID": 259000420,
                        "Valid": True,
                        "Sog": 0,
                        "Cog": 308.5,
                        "Latitude": 66.02,
                        "Longitude": 12.25,
                        "TrueHeading": 235,
                        "Timestamp": 31 + minute,
                    }
                },
            }
            for minute in range(2)
        ],
        2,
        {
            "MessageType": STRING,
            "MMSI": LONG,
            "ShipName": STRING,
            "latitude": DOUBLE,
            "Valid": BOOLEAN,
            "Sog": DOUBLE,
            "Cog": DOUBLE,
            "TrueHeading": LONG,
            "Timestamp": LONG,
        },
    ),
    "VesselFinder": Product(
        [
            [
                {
                    "AIS": {
                        "MMSI": 228336700 + one,
                        "TIMESTAMP": f"2026-10-05 06:0{minute}:00 UTC",
                        "LATITUDE": 52.25,
                        "LONGITUDE": 4,
                        "COURSE": 144.5,
                        "SPEED": 12,
                        "HEADING": 511,
                        "NAVSTAT": 0,
                        "NAME": "ARIES",
                    }
                }
                for one in range(2)
            ]
            for minute in range(2)
        ],
        4,
        {
            "MMSI": LONG,
            "TIMESTAMP": TIME,
            "LATITUDE": DOUBLE,
            "LONGITUDE": DOUBLE,
            "COURSE": DOUBLE,
            "SPEED": DOUBLE,
            "NAME": STRING,
        },
        "$",
    ),
    "Signal K": Product(
        [
            {
                "context": "vessels.urn:mrn:imo:mmsi:234567890",
                "updates": [
                    {
                        "source": {"label": "n2k-sample-data", "type": "NMEA2000", "pgn": 128275, "src": "43"},
                        "timestamp": at(minute),
                        "values": [
                            {"path": "navigation.trip.log", "value": 43374 + minute},
                            {"path": "navigation.log", "value": 17404540.5},
                        ],
                    }
                ],
            }
            for minute in range(2)
        ],
        4,
        {"context": STRING, "timestamp": TIME, "path": STRING, "value": DOUBLE, "pgn": LONG},
        {"elements": "$.updates", "inner": "$.updates.values"},
    ),
    "flespi": Product(
        [
            [
                {
                    "ident": "352625333222111",
                    "timestamp": seconds(minute) + 0.5,
                    "server.timestamp": seconds(minute) + 2.25,
                    "channel.id": 1111,
                    "device.name": "truck 1",
                    "position.latitude": 54.75,
                    "position.longitude": 25,
                    "position.speed": 60,
                    "engine.ignition.status": True,
                }
                for minute in range(2)
            ]
        ]
        * 2,
        4,
        {
            "ident": STRING,
            "timestamp": TIME,
            "server_timestamp": TIME,
            "channel_id": LONG,
            "position_latitude": DOUBLE,
            "position_longitude": DOUBLE,
            "position_speed": DOUBLE,
            "engine_ignition_status": BOOLEAN,
        },
        "$",
    ),
    "readsb": Product(
        [
            {
                "now": seconds(minute) + 0.25,
                "messages": 146873 + minute,
                "aircraft": [
                    {
                        "hex": f"89621{one}",
                        "flight": "UAE2W ",
                        "alt_baro": 33000,
                        "gs": 568,
                        "track": 133.5,
                        "lat": 51.1,
                        "lon": 7.3,
                    }
                    | {"mlat": [], "tisb": [], "messages": 203, "seen": 4.5, "rssi": -4.5}
                    for one in range(2)
                ],
            }
            for minute in range(2)
        ],
        4,
        {
            "now": TIME,
            "hex": STRING,
            "flight": STRING,
            "alt_baro": DOUBLE,
            "gs": DOUBLE,
            "track": DOUBLE,
            "lat": DOUBLE,
            "rssi": DOUBLE,
        },
        "$.aircraft",
        left_out={"$.messages": "an aircraft has a member of this name"},
    ),
}
