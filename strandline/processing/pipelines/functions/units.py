"""Units of measure, and the conversion between them. Exact by definition: the SI Brochure (9th edition, 2019) and NIST Special
Publication 811 (2008), appendix B."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from strandline.core.documents import did_you_mean

_INCH, _FOOT, _MILE, _POUND = Fraction("0.0254"), Fraction("0.3048"), Fraction("1609.344"), Fraction("0.45359237")
_GRAVITY = Fraction("9.80665")
_GALLON, _GALLON_UK = Fraction("0.003785411784"), Fraction("0.00454609")
_BTU = Fraction("1055.05585262")

_UNITS: dict[str, dict[str, str | Fraction]] = {
    "length": {
        "m": "1", "km": "1000", "dm": "0.1", "cm": "0.01", "mm": "0.001", "um": "1e-6", "nm": "1e-9", "in": _INCH,
        "ft": _FOOT, "yd": 3 * _FOOT, "mi": _MILE, "nmi": "1852",
    },
    "area": {
        "m2": "1", "km2": "1e6", "cm2": "1e-4", "mm2": "1e-6", "ha": "1e4", "in2": _INCH**2, "ft2": _FOOT**2,
        "acre": 43_560 * _FOOT**2,
    },
    "volume": {
        "m3": "1", "L": "0.001", "hL": "0.1", "mL": "1e-6", "cm3": "1e-6", "ft3": _FOOT**3, "in3": _INCH**3,
        "gal": _GALLON, "gal_uk": _GALLON_UK, "bbl": 42 * _GALLON,
    },
    "mass": {
        "kg": "1", "g": "0.001", "mg": "1e-6", "ug": "1e-9", "t": "1000", "lb": _POUND, "oz": _POUND / 16,
        "ton_us": 2000 * _POUND,
    },
    "time": {
        "s": "1", "ms": "0.001", "us": "1e-6", "ns": "1e-9", "min": "60", "h": "3600", "d": "86400", "wk": "604800",
    },
    "frequency": {"Hz": "1", "kHz": "1000", "MHz": "1e6", "GHz": "1e9", "rpm": Fraction(1, 60)},
    "speed": {
        "m/s": "1", "km/h": Fraction(5, 18), "mm/s": "0.001", "m/min": Fraction(1, 60), "ft/s": _FOOT,
        "ft/min": _FOOT / 60, "mph": _MILE / 3600, "kn": Fraction(1852, 3600),
    },
    "acceleration": {"m/s2": "1", "g0": _GRAVITY, "ft/s2": _FOOT},
    "force": {"N": "1", "kN": "1000", "lbf": _POUND * _GRAVITY, "kgf": _GRAVITY},
    "torque": {"N.m": "1", "kN.m": "1000", "lbf.ft": _POUND * _GRAVITY * _FOOT, "lbf.in": _POUND * _GRAVITY * _INCH},
    "pressure": {
        "Pa": "1", "hPa": "100", "kPa": "1000", "MPa": "1e6", "bar": "1e5", "mbar": "100", "atm": "101325",
        "psi": _POUND * _GRAVITY / _INCH**2, "torr": Fraction(101325, 760), "mmHg": "133.322387415",
        "inHg": Fraction("133.322387415") * Fraction("25.4"), "mH2O": "9806.65", "inH2O": "249.08891",
    },
    "energy": {
        "J": "1", "kJ": "1000", "MJ": "1e6", "GJ": "1e9", "Wh": "3600", "kWh": "3.6e6", "MWh": "3.6e9", "cal": "4.184",
        "kcal": "4184", "BTU": _BTU, "therm": 100_000 * _BTU,
    },
    "power": {
        "W": "1", "mW": "0.001", "kW": "1000", "MW": "1e6", "GW": "1e9", "BTU/h": _BTU / 3600,
        "hp": 550 * _POUND * _GRAVITY * _FOOT, "hp_metric": 75 * _GRAVITY,
    },
    "flow": {
        "m3/s": "1", "m3/h": Fraction(1, 3600), "L/s": "0.001", "L/min": Fraction(1, 60_000),
        "L/h": Fraction(1, 3_600_000), "gal/min": _GALLON / 60, "ft3/min": _FOOT**3 / 60,
    },
    "mass flow": {"kg/s": "1", "kg/h": Fraction(1, 3600), "t/h": Fraction(1000, 3600), "lb/h": _POUND / 3600},
    "density": {"kg/m3": "1", "g/cm3": "1000", "g/L": "1", "lb/ft3": _POUND / _FOOT**3},
    "concentration of mass": {"mg/m3": "1", "ug/m3": "0.001", "g/m3": "1000", "mg/L": "1000", "ug/L": "1"},
    "share": {"1": "1", "%": "0.01", "permille": "0.001", "ppm": "1e-6", "ppb": "1e-9"},
    "current": {"A": "1", "kA": "1000", "mA": "0.001", "uA": "1e-6"},
    "voltage": {"V": "1", "kV": "1000", "mV": "0.001", "uV": "1e-6"},
    "resistance": {"Ohm": "1", "mOhm": "0.001", "kOhm": "1000", "MOhm": "1e6"},
    "conductivity": {"S/m": "1", "mS/cm": "0.1", "uS/cm": "1e-4"},
    "apparent power": {"VA": "1", "kVA": "1000", "MVA": "1e6"},
    "reactive power": {"var": "1", "kvar": "1000", "Mvar": "1e6"},
    "charge": {"C": "1", "Ah": "3600", "mAh": "3.6"},
    "angle": {"deg": "1", "arcmin": Fraction(1, 60), "arcsec": Fraction(1, 3600), "rev": "360"},
    "data": {
        "bit": Fraction(1, 8), "B": "1", "kB": "1000", "MB": "1e6", "GB": "1e9", "KiB": "1024", "MiB": str(2**20),
        "GiB": str(2**30),
    },
    "illuminance": {"lx": "1", "klx": "1000", "fc": 1 / _FOOT**2},
    "radioactivity": {"Bq": "1", "kBq": "1000", "Ci": "3.7e10"},
    "dose": {"Sv": "1", "mSv": "0.001", "uSv": "1e-6"},
}  # fmt: skip
"""Quantity -> unit -> its size in the first unit of the quantity."""
_TEMPERATURES = {
    "K": (Fraction(1), Fraction(0)),
    "degC": (Fraction(1), Fraction("273.15")),
    "degF": (Fraction(5, 9), Fraction("459.67") * Fraction(5, 9)),
    "degR": (Fraction(5, 9), Fraction(0)),
}
"""Unit -> (size of a degree in kelvins, zero point in kelvins)."""
UNITS_BY_QUANTITY: dict[str, tuple[str, ...]] = {
    "temperature": tuple(_TEMPERATURES),
    **{quantity: tuple(units) for quantity, units in _UNITS.items()},
}
"""Quantity -> its units, as the docs list them."""
_QUANTITY_OF = {unit: quantity for quantity, units in UNITS_BY_QUANTITY.items() for unit in units}


@dataclass(frozen=True)
class Conversion:
    """`(x + before) * numerator / denominator + after`. Values that doubles represent exactly stay exact: 212 degF are 100
    degC."""

    before: float
    numerator: float
    denominator: float
    after: float


def unit_of(text: str) -> str:
    """Return the unit. Raises ValueError for an unknown one."""
    if text not in _QUANTITY_OF:
        raise ValueError(f"'{text}' is not a unit here{did_you_mean(text, sorted(_QUANTITY_OF))}")
    return text


def refuse_other_quantity(source: str, target: str) -> None:
    """Raise ValueError if the units are of different quantities, such as a length and a mass."""
    one, other = _QUANTITY_OF[source], _QUANTITY_OF[target]
    if one != other:
        raise ValueError(f"converts {one} ('{source}') to {other} ('{target}'), which are different quantities")


def conversion(source: str, target: str) -> Conversion:
    """Return the conversion from one unit to another of the same quantity."""
    (factor, zero), (other_factor, other_zero) = _scale(source), _scale(target)
    ratio = factor / other_factor
    numerator, denominator = float(ratio.numerator), float(ratio.denominator)
    if max(ratio.numerator, ratio.denominator) > 2**53:
        numerator, denominator = float(ratio), 1.0
    before, after = (zero - other_zero) / factor, (zero - other_zero) / other_factor
    if _is_exact(after) or not _is_exact(before):
        return Conversion(0.0, numerator, denominator, float(after))
    return Conversion(float(before), numerator, denominator, 0.0)


def _scale(unit: str) -> tuple[Fraction, Fraction]:
    if unit in _TEMPERATURES:
        return _TEMPERATURES[unit]
    return Fraction(_UNITS[_QUANTITY_OF[unit]][unit]), Fraction(0)


def _is_exact(number: Fraction) -> bool:
    return math.isfinite(float(number)) and Fraction(float(number)) == number
