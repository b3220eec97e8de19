"""Appending records to the log: the producer, the spool for when Kafka is away, and the writer's identity."""
