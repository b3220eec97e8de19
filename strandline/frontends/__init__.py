"""Other ways to write what YAML documents say, Python and SQL. Each only builds documents; the model is `pipelines/model.py`."""
