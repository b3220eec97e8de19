"""The polling gateway: requests records from devices that don't send by themselves."""
