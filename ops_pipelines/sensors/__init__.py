"""Notices and requests runs; the fault sensor also drains (`flow.plans.reflex`), nothing stronger."""
