"""Authentication and authorization: principals and rights, tokens, and the authenticators of listeners."""
