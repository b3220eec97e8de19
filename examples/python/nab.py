"""Python version of ../nab.yaml: real sensor series. `python examples/python/nab.py` runs it over the readings in `examples`."""

from pathlib import Path

from strandline import stream, tumbling

machines = stream(
    "machines",
    schema={"device": "string", "timestamp": "timestamp", "value": "double"},
    partitions=4,
    format="json",
    key="device",
)

nab = (
    machines.event_time("timestamp", delay="1d", idle_timeout="1m", max_ahead="5m")
    .window(
        tumbling("1h"),
        name="hourly",
        by=["device"],
        n="count(*)",
        mean="avg(value)",
        low="min(value)",
        high="max(value)",
        total="sum(value)",
    )
    .emit(elasticsearch="machines-hourly")
    .window(
        tumbling("1d"),
        name="daily",
        by=["device"],
        n="sum(n)",
        mean="sum(total) / sum(n)",
        low="min(low)",
        high="max(high)",
    )
    .emit(elasticsearch="machines-daily")
    .pipeline("nab")
)

if __name__ == "__main__":
    for day in nab.run(Path(__file__).parents[1] / "readings.ndjson").of("daily"):
        print(day["@timestamp"], day["device"], day["n"], day["mean"])
