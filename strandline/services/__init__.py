"""What people and programs meet: the REST API, the command line, the supervision of runners, the embedded stack."""
