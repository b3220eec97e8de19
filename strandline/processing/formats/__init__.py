"""The bytes of records to typed columns: formats, paths, fields, times."""
