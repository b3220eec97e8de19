"""Schemas of Avro and message types of Protobuf. Unsafe schemas are refused."""
