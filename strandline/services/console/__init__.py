"""Console: the web page of the control service. Its sources are in `console/` at the root of the repository."""
