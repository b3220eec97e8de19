"""The use cases: what the REST API, the command line and notices do with documents, jobs, results and dead letters."""
