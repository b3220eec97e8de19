"""The routes of the REST API, one file a noun. Plain functions: FastAPI runs them in threads, off the event loop."""
