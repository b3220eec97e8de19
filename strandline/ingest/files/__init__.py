"""Files into streams: each record once, also over a kill."""
