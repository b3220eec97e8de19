"""Commands that run a pipeline without a stack, and the display of their results."""
