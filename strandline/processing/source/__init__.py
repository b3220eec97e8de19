"""The log as a Spark data source: reading slices as typed columns."""
