"""The parts of the check of a pipeline."""
