"""What became of installed GPUs, second by second, and what is written about it."""
