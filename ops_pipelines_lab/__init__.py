"""The laboratory: what simulates a cluster (`simulator`), plays the whole loop on one (`drills`) or a policy
(`whatif`).

The product knows `simulated` and the commands of `whatif` by name alone (`ops_pipelines.laboratory`).
"""
