"""The documents of records, where a stage emits records."""
