"""The way of a node back into service: tests, verification, probation."""
