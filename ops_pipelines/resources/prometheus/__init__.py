"""Prometheus and what speaks its API: instant and range queries over one careful connection."""
