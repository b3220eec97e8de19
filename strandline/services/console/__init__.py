"""The console: the web page of the control service. Its sources are in `console/` at the top of the repository."""
