"""A stretch of time as columns: what the detectors look at, and what one of them says."""
