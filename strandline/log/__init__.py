"""Kafka: topics, offsets, reading, read-back and transactions. All code that speaks to Kafka for the platform stands here."""
