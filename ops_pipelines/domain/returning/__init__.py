"""Whether it happened and is well again; and what a vendor is told if it is not."""
