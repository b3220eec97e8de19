"""Records in Avro's binary encoding."""
