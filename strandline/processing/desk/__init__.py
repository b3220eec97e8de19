"""A pipeline at the desk: records of a file through the operators of a running job, without any server."""
