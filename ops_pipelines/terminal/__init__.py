"""What the command line reads, the values that it answers, and how they are printed."""
