"""Who may do what: principals and rights, tokens, and the doors that ask for them."""
