"""From the log to results: pipelines, slices, the source, operators, emission, and the run that drives them."""
