"""Use cases: operations of the REST API, the command line, and notices on documents, jobs, results, and dead letters."""
