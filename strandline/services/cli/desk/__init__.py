"""Verbs that try a pipeline without a stack, and how they show what came of it."""
