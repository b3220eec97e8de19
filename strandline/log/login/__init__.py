"""How this process proves who it is to Kafka where a password is not all."""
