"""Shapes of records that are several rows, other than an array within an object."""
