"""The TCP and UDP gateways."""
