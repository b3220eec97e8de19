"""Routes of the REST API, one file for each noun. FastAPI runs these functions in threads, off the event loop."""
