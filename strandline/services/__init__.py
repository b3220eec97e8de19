"""Entry points for people and programs: REST API, command line, supervision of runners, embedded stack."""
