"""Kafka: topics, offsets, reading, read-back, and transactions.

All of the platform's code that uses Kafka is in this package.
"""
