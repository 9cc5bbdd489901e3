"""Log lines: what a line reports of itself, which signature it matches, what evidence it is."""
