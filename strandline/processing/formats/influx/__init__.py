"""Lines of InfluxDB's protocol."""
