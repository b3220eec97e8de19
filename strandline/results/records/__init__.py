"""The documents of stages that emit records."""
