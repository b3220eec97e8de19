"""Messages of Protobuf."""
