"""Authentication of this process at Kafka by other means than a password."""
