"""From a sensor to the log: gateways accept records, append them to a stream, and acknowledge them after Kafka's
confirmation."""
