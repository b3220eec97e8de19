"""The form of sinks that packages provide."""
