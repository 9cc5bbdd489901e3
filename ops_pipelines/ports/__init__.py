"""Asks. Protocols with their contract in the docstring; adapters and fakes need not inherit."""
