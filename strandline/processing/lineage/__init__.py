"""The life of records: the results of each record, and the records of each result."""
