"""One module a schema version, oldest first."""
