"""The HTTP gateway: takes the records of a request's body."""
