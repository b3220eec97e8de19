"""The log as a Spark data source: reading slices and decoding records into typed columns."""
