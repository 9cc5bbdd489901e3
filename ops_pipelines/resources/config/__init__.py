"""Reads cluster.yaml and policy.yaml strictly; nothing half-read ever leaves."""
