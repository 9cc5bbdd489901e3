"""Notices and requests runs; the fault sensor also drains (`flow.reflex`), nothing stronger."""
