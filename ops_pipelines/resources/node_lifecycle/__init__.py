"""What runs on a node for a rollout: one installation under a key, and what tells which versions run."""
