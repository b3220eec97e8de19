"""Pipelines in SQL: statements with the windowing functions of Flink, translated to the documents that YAML would hold."""
