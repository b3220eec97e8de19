"""Stores of results beside the index and streams, and the contract that every sink keeps."""
