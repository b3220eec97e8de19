"""Raw records: text or bytes."""
