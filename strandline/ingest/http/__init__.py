"""The HTTP gateway: accepts records in the bodies of requests."""
