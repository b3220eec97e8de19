"""Kafka and Elasticsearch for the tests."""
