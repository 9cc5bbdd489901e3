"""Whether an act may be started: every limit and precondition, and what a plan touches."""
