"""What was agreed with teams, what they announced, and what things cost: as a site states it.

To begin with: `desk` (everything in one place, with the settings), `contracts`, `projects`, `price`.
"""

__all__ = ["contracts", "desk", "price", "projects"]
