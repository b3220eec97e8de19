"""Packs of SenML."""
