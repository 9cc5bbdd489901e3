"""Reaches out: the adapters that implement the ports on real systems."""
