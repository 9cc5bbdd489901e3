"""Whole recorded days of a simulated cluster, with the truth beside them: what diagnosis is measured on."""
