"""Decides. Pure values and functions: standard library only, no I/O, no clock, no randomness, no logging."""
