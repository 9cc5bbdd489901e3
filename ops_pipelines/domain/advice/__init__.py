"""What jobs and teams could do better, by evidence and against it, and what it would gain. Pure; advice only."""
