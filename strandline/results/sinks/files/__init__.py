"""Parquet files by day, which count by a manifest."""
