"""The example that `make run` shows: a simulated wind farm, its pipeline, and a live view of what becomes of its records."""
