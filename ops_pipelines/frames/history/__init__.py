"""Months of trouble: what wears out, and which batch, rack or version fails too often."""
