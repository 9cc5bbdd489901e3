"""Whether an act may be begun: every limit and precondition, and the proof of what a plan touches."""
