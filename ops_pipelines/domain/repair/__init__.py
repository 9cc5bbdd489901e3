"""What is done about an incident: the acts of a repair in their order, and the moves of its jobs."""
