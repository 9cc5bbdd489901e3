"""Capacity: days summed, peaks foretold each quarter, the plan that follows, and what was kept of it."""
