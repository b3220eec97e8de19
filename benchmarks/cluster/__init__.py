"""Jobs on a standalone Spark cluster."""
