"""Orchestrates: one asset a noun of the flow. Reads ports, calls flow and domain, shows what came out."""
