"""The doctor: looks at everything that a deployment stands on, one module a subject, and says what to do."""
