"""The polling gateway: asks devices that only answer."""
