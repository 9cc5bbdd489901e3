"""Whether a wave did well: what is compared, tests that may be looked at at any time, the verdict."""
