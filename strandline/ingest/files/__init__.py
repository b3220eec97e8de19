"""Files into streams: each record once, even if the process is killed."""
