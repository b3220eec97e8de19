"""Pipelines in SQL: statements with Flink's windowing functions, translated to documents."""
