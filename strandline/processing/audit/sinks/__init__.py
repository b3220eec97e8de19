"""The comparison of results in sinks other than indices and streams. Rows are read in parts of bounded size, for each sink."""
