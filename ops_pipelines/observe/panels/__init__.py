"""A span of time as columns: what the detectors look at."""
