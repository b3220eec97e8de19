"""MQTT: a bridge that reads from a broker, and a server to which sensors connect."""
