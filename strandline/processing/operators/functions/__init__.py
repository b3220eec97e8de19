"""The functions of expressions on Arrow columns, found by the names that they have in the table of signatures."""
