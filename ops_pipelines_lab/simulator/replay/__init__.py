"""Whole recorded days of a pretended cluster, with the truth beside them: what diagnosis is measured on."""
