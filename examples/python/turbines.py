"""Python version of ../turbines.yaml: a wind farm."""

from strandline import stream, tumbling

turbines = stream(
    "turbines",
    schema={
        "turbine": "string",
        "site_id": "string",
        "ts": {"type": "timestamp", "unit": "ms"},
        "state": "string",
        "power": {"type": "double", "min": 0},  # kW
        "wind": "double?",  # m/s
        "temperature": "double?",  # of the gearbox oil, °C
    },
    partitions=4,
    key="turbine",
    retention="7d",
    mqtt={"topics": ["farm/+/turbine/+"]},
    udp={"port": 8082},
)

turbine_health = (
    turbines.event_time("ts", delay="15m", idle_timeout="1m", max_ahead="5m")
    .derive(load="power / 3000")  # of the rated power, 3 MW
    .where("state <> 'service'")
    .window(
        tumbling("1m"),
        name="per_minute",
        by=["site_id", "turbine"],
        n="count(*)",
        load="avg(load)",
        peak="max(load)",
        wind="avg(wind)",
        temperature="max(temperature)",
    )
    .emit(elasticsearch="turbine-minute")
    .window(
        tumbling("1h"),
        name="hourly",
        by=["site_id", "turbine"],
        n="sum(n)",
        load="avg(load)",
        peak="max(peak)",
        temperature="max(temperature)",
    )
    .emit(elasticsearch="turbine-hour")
    .pipeline("turbine-health", dead_letters={"index": True})
)
