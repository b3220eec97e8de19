"""What an audit compares of files and tables: rows that are read in parts of a bounded size, for each place of its own."""
