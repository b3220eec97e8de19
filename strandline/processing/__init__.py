"""From the log to results: pipeline model, slice planner, log source, stages, rewind, commit of a slice, runner."""
