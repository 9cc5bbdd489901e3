"""Log lines: what a line says of itself, which signature it matches, what evidence it is."""
