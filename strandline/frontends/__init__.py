"""Other ways to write YAML documents: Python and SQL. They only build documents; the model is `pipelines/model.py`."""
