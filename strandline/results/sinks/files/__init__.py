"""Parquet files by day, which count when a manifest contains them."""
