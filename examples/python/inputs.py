"""Python version of ../inputs.yaml: two streams, each with its own event time, delay, and names, united for windows over both."""

from strandline import stream, tumbling

turbines = stream(
    "turbines",
    schema={"turbine": "string", "site_id": "string", "ts": {"type": "timestamp", "unit": "ms"}, "power": "double"},
    key="turbine",
)
inverters = stream(
    "inverters",
    schema={"inverter": "string", "site_id": "string", "time": "timestamp", "watts": "long"},
    key="inverter",
)

power = turbines.event_time("ts", delay="10s")
watts = inverters.event_time("time", delay="1m")
per_site = (
    power.union(watts.derive(power="watts / 1000").named("in_kilowatts"))
    .window(tumbling("1m"), name="per_site", by=["site_id"], n="count(*)", power="sum(power)")
    .emit(elasticsearch="site-minute")
)
per_inverter = watts.window(tumbling("5m"), name="per_inverter", by=["inverter"], n="count(*)", peak="max(watts)")
site_power = per_site.beside(per_inverter.emit(elasticsearch="inverter-5m")).pipeline("site-power")
