"""The functions of expressions, as data: what the check, the evaluation and the docs know of each."""
