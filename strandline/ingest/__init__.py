"""From a sensor to the log: gateways take records, append them to a stream, and acknowledge what Kafka has confirmed."""
