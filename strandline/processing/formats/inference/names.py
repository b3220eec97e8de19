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
        "angle tilt setpoint concentration pm co2 tvoc voc",
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
_TIME = re.compile(
    r"(?i)(?:^|_|\b)(?:t|t0|ts|tst|dt|utc|dateutc|unixtime|unix|epoch|time|timestamp|date|datetime|at|when|created|measured|ns"
    r"|received|recorded|updated|last_?seen|timestamp_?utc)(?:_?(?:s|ms|us|ns))?$"
)


def is_measured(name: str) -> bool:
    """Return True if values of this name are measured, so that they can have a fraction."""
    words = _words(name)
    return not words & (_COUNTED | _IDENTIFIER) and bool(words & _MEASURED)


def is_identifier(name: str) -> bool:
    """Return True if values of this name identify something, so that they are no numbers even if they consist of digits."""
    return bool(_words(name) & _IDENTIFIER)


def is_counted(name: str) -> bool:
    """Return True if values of this name are integers in any case."""
    return bool(_words(name) & (_COUNTED | _IDENTIFIER))


def is_time(name: str) -> bool:
    """Return True if numbers of this name can be times."""
    return _TIME.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)) is not None


def _words(name: str) -> frozenset[str]:
    return frozenset(part.lower() for part in _PART.findall(name))
