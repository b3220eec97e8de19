"""Schemas of Avro and message types of Protobuf: read, and refused where they can't be used safely."""
