"""Whether an act may be begun: every limit and precondition, and what a plan touches."""
