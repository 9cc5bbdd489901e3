"""Computes over columns and lines: raw samples and log lines in, accepted and rejected facts out. No network."""
