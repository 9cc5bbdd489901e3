"""Rollouts carried out: a pass over each, one node's way, what people order, what is announced, what the gate sees."""
