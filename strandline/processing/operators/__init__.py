"""The steps and windows of a pipeline."""
