"""Notices and requests runs; the fault sensor also drains (`remediate.plans.reflex`), nothing stronger."""

from ops_pipelines.sensors.one_instance import share_one_instance

share_one_instance()
