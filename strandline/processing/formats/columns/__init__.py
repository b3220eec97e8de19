"""Fields of many records as columns: the fast path of formats whose records have the same form."""
