"""The doctor: checks all servers and machines that a deployment depends on, one module per subject, and reports remedies."""
