"""Hours and cycles of the lake: filled, read as a window, imported."""
