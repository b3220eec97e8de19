"""MQTT: a bridge that reads from a broker, and a server for sensors."""
