"""Carries out: takes evidence in, takes a snapshot, acts and verifies. Ports and domain only; no Dagster."""
