"""NEXMark: an auction house whose people, auctions and bids are the records, the queries over them in `examples/nexmark`, an
oracle that answers them in DuckDB, and what each costs (docs/nexmark.md)."""
