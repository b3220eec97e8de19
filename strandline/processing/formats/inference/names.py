"""Meaning of field names: measurements, numbers of things, identifiers, and times."""

from __future__ import annotations

import re

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MEASURED = frozenset(
    word
    for line in (
        "temp temperature tempf tempc tempin tempout celsius fahrenheit kelvin hum humi humidity moisture",
        "vwc pressure press baro barometer volt volts voltage current amp amps ampere amperes",
        "power watt watts energy kwh wh kw kva kvar illuminance lux light uv",
        "radiation irradiance solar level flow rain rainfall precipitation wind gust speed velocity dew",
        "dewpoint ph weight mass distance depth height alt altitude elevation lat latitude lon lng",
        "long longitude frequency hz vibration accel acceleration torque force humidex noise db ppm",
        "percent pct salinity conductivity turbidity load consumption usage odometer fuel soc snr factor",
        "angle tilt setpoint concentration pm co2 eco2 tvoc voc dewp pf course sog cog gs",
    )
    for word in line.split()
)
_IDENTIFIER = frozenset(
    word
    for line in (
        "id ids uid uuid guid eui deveui appeui joineui euid mac imei imsi",
        "iccid serial sn addr address firmware fw version ver hardware hw sw software",
        "model part sku barcode tag epc code key passkey device name ssid bssid",
        "phone vin plate ip token hash batch lot order tenant customer release",
    )
    for word in line.split()
)
_COUNTED = frozenset(
    word
    for line in (
        "count counts counter total number num seq sequence index idx cnt fcnt port",
        "fport status state errors error uptime packets bytes pulses steps cycles restarts retries",
        "rssi rank size len length channel",
    )
    for word in line.split()
)
_QUANTITY = re.compile(
    r"(?:power|speed|voltage|energy|temperature|humidity|pressure|radiation)$|^(?:rain|barom)|rain(?:in|mm|rate)|(?:mph|kmh|kph)$"
)
"""A quantity within a word, as in `apower` and `hourlyrainin`."""
_MEASURED_UNIT = re.compile(r"(?i)(?:^|_)(?:kwh|wh|kw|kva|kvar|kvarh|hz|m3|hpa|mbar|ppm|ppb)$")
"""A unit at the end of a name, as in `total_kwh`."""
_VERSION = re.compile(r"(?:version|uuid|guid|serial)$")
"""An identifier within a word, as in `specversion`."""
_VALUE = frozenset("value values val reading readings measurement".split())  # noqa: SIM905
_TIME = re.compile(
    r"(?i)(?:^|_|\b)(?:t|t0|ts|tst|dt|utc|dateutc|unixtime|unix|epoch|time|timestamp|date|datetime|at|when|created|measured|ns"
    r"|received|recorded|updated|last_?seen|timestamp_?utc)(?:_?in)?(?:_?(?:s|ms|us|ns|sec|seconds|millis|milliseconds|micros|nanos))?$"
)


def is_measured(name: str) -> bool:
    """Return True if values of this name are measured, so that they can have a fraction."""
    words = words_of(name)
    if _MEASURED_UNIT.search(name) is not None:
        return True
    if words & _COUNTED or is_identifier(name):
        return False
    return bool(words & _MEASURED) or any(_QUANTITY.search(word) for word in words)


def is_identifier(name: str) -> bool:
    """Return True if values of this name identify something, so that they are no numbers even if they consist of digits."""
    words = words_of(name)
    return bool(words & _IDENTIFIER) or any(_VERSION.search(word) for word in words)


def is_value(name: str) -> bool:
    """Return True if the name only states that it is a value, so that numbers in quotes are its form of a number."""
    return name.lower() in _VALUE


def is_counted(name: str) -> bool:
    """Return True if values of this name are integers in any case."""
    return bool(words_of(name) & _COUNTED) or is_identifier(name)


def is_time(name: str) -> bool:
    """Return True if numbers of this name can be times."""
    return _TIME.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)) is not None


def words_of(name: str) -> frozenset[str]:
    """Return the words of a name in lower case: its parts in camel case, and its parts with their digits, as `co2`."""
    return frozenset(part.lower() for part in _PART.findall(name)) | frozenset(re.findall(r"[^\W_]+", name.lower()))
