"""Python version of ../records.yaml: each reading as a separate document, once, and windows of a minute."""

from strandline import stream, tumbling

readings = stream(
    "climate",
    schema={
        "device": "string",
        "ts": {"type": "timestamp", "unit": "ms"},
        "celsius": {"type": "double", "min": -90, "max": 90},
        "firmware": "string?",
    },
    partitions=4,
    key="device",
)

climate = (
    readings.event_time("ts", delay="10s")
    .drop("firmware")
    .derive(fahrenheit="celsius * 1.8 + 32")
    .emit(elasticsearch="climate-readings", name="readings")
    .window(tumbling("1m"), name="minutes", by=["device"], n="count(*)", mean="avg(celsius)")
    .derive(is_warm="mean > 25")
    .emit(elasticsearch="climate-minutes")
    .pipeline("climate")
)
