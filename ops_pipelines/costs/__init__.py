"""What became of each installed GPU-second, what it cost, and who pays for it."""
