"""Daily peaks of all that capacity counts: made from hours of the lake, read back as series."""
