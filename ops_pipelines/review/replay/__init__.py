"""Recorded history through another policy: what would have been decided, and how that differs."""
