"""NEXMark: auctions, with people, auctions, and bids as records. The queries are in `examples/nexmark`. An oracle answers them
in DuckDB, and the benchmark measures their cost (docs/nexmark.md).
"""
