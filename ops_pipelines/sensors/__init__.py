"""Sensors: each compares and requests runs. `fault` also drains, by `remediate.reflex`, and does nothing stronger.

What they share is `runs`; `due_runs` are those that request runs, `upkeep` those that request none.
"""
