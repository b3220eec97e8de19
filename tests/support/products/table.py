"""The table of products, by area."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.products import (
    buildings,
    clouds,
    energy,
    historians,
    home,
    lorawan,
    plc,
    vehicles,
    wearables,
    weather,
)
from tests.support.products.product import Product

AREAS: Mapping[str, Mapping[str, Product]] = {
    "LoRaWAN servers": lorawan.PRODUCTS,
    "Home automation": home.PRODUCTS,
    "PLC gateways": plc.PRODUCTS,
    "Weather": weather.PRODUCTS,
    "Energy": energy.PRODUCTS,
    "Vehicles": vehicles.PRODUCTS,
    "Wearables": wearables.PRODUCTS,
    "Buildings": buildings.PRODUCTS,
    "Historians": historians.PRODUCTS,
    "IoT clouds": clouds.PRODUCTS,
}
PRODUCTS = {name: product for area in AREAS.values() for name, product in area.items()}
