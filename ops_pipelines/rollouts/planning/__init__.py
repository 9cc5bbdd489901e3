"""What a release will do to the fleet before it does it: who, in which waves, when, at what cost."""
