"""What was agreed with teams, what they announced, and what things cost: as a site states it."""
