"""Who is where: gangs apart, GPUs in pieces, GPUs that nobody can have, and how long jobs wait."""
