"""Fields of many records read at once, as columns: the quick way of formats whose records stand alike."""
