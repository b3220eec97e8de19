"""Append records to the log: producers, the disk spool for Kafka outages, and the identity of the writer."""
