"""Requests that hold many data points: each record is a whole request, and each of its points a row."""
