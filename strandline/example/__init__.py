"""The example of `make run`: a simulated wind farm, its pipeline, and a live view of its records and results."""
