"""Refuses: asset checks that block an unsafe plan."""
