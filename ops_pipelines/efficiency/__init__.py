"""What jobs and teams could do better, by evidence; where jobs stand, what is stranded, who waits."""
